// The tour of tour.py: what a person does in the browser. Usage: node tour.mjs LINK SHOTS CHROMIUM MODULES
import {createRequire} from 'node:module';
import {readFileSync} from 'node:fs';

const [, , link, shots, chromium, modules] = process.argv;
const require = createRequire(`${modules}/`);
const {chromium: browserType} = require(`${modules}/playwright-core`);
const axe = readFileSync(`${modules}/axe-core/axe.min.js`, 'utf8');
const base = new URL(link).origin + '/console';
const faults = [];
const note = (text) => console.log(`  ${text}`);
const check = (what, holds) => { note(`${holds ? 'ok  ' : 'FAIL'} ${what}`); if (!holds) faults.push(what); };

const flags = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];
const browser = await browserType.launch({executablePath: chromium, args: flags});
const context = await browser.newContext({viewport: {width: 1280, height: 860}});
const page = await context.newPage();
const outside = [];
page.on('console', (said) => { if (said.type() === 'error' && !said.text().includes('net::ERR')) faults.push(said.text()); });
page.on('pageerror', (error) => faults.push(String(error)));
page.on('request', (request) => { if (!request.url().startsWith(new URL(link).origin)) outside.push(request.url()); });
let loads = 0;
page.on('load', () => { loads += 1; });
const press = async (...keys) => { for (const key of keys) await page.keyboard.press(key); };
const focused = () => page.evaluate(() => {
  const one = document.activeElement;
  return one.matches('input, textarea, select') ? one.name : one.textContent.trim();
});
const tabTo = async (text) => {
  for (let count = 0; count < 60 && await focused() !== text; count += 1) await press('Tab');
  return (await focused()) === text;
};

console.log('from an empty database to an approved call, by keyboard');
await page.goto(link, {waitUntil: 'load'});
check('the link logs in', page.url() === `${base}/`);
check('the first turn has the focus', (await focused()) === 'Send a turn that asks you');
await press('g', 'i');
await page.waitForURL('**/inbox');
check('the empty inbox offers a turn', (await focused()) === 'Send a turn that asks you');
await page.screenshot({path: `${shots}/first.png`, fullPage: true});
await press('Enter');
await page.waitForURL('**/runs/*');
const run = page.url();
loads = 0;
await page.locator('#run-questions .card').waitFor({timeout: 30000});
check('the question comes without a reload', loads === 0 && page.url() === run);
check('its exact arguments are shown', (await page.locator('.exact').innerText()).includes('by the <b>river</b>'));
check('the run says why it waits', await page.locator('.why').isVisible());
await page.screenshot({path: `${shots}/run-waiting.png`, fullPage: true});
await press('g', 'i');
await page.waitForURL('**/inbox');
await page.screenshot({path: `${shots}/inbox.png`, fullPage: true});
const other = await context.newPage();
await other.goto(await page.locator('.card [data-open]').first().getAttribute('href').then((path) => new URL(link).origin + path));
await other.waitForTimeout(1500);
let otherLoads = 0;
other.on('load', () => { otherLoads += 1; });
await press('j', 'a', 'Enter');
await page.waitForURL('**/inbox?done=approved');
const began = Date.now();
await other.locator('.said-by-agent').waitFor({timeout: 30000});
check('the run ends on its open page without a reload', otherLoads === 0);
note(`${Date.now() - began} ms from the approval to the answer on the screen`);
await other.screenshot({path: `${shots}/run-done.png`, fullPage: true});
await other.close();

console.log('a fork from a step, by keyboard');
await page.goto(run, {waitUntil: 'load'});
await press('j', 'j', 'j', 'f');  // a call: its step is meant
await page.waitForURL('**/fork?step=1');
const fork = page.url();
check('the fork is from the step that asked for the call', (await page.locator('h1').innerText()) === 'Fork from step 1');
check('the edit is reached', await tabTo('text'));
await page.keyboard.type(' (changed)');
check('the button is reached', await tabTo('Fork and run'));
await press('Enter');
await page.waitForURL(/runs.[0-9a-f-]+.done=forked/);
await page.locator('.said-by-agent').waitFor({timeout: 60000});
await page.goto(page.url().split('?')[0], {waitUntil: 'load'});
const forked = page.url();  // of the run, where that of the turn led before
check('the comparison is reached', await tabTo('Compare'));
await press('Enter');
await page.waitForURL('**/compare');
check('the first difference is marked', (await page.locator('#first-difference').innerText()).includes('First difference'));
await press('Escape');
await page.waitForURL(forked);

console.log('the search box');
await press('/');
await page.keyboard.type('sta');
await page.locator('#suggestions option[value^="status:"]').first().waitFor({state: 'attached', timeout: 10000});
check('it suggests words', await page.locator('#suggestions option').count() > 0);
await press('Escape');
await page.goto(`${base}/runs`, {waitUntil: 'load'});
await press('/');
await page.keyboard.type('status:answ');
await page.locator('#suggestions option[value="status:answered"]').waitFor({state: 'attached', timeout: 10000});
await page.keyboard.type('ered');  // the list that a browser draws below the box cannot be reached from here
await press('Enter');
await page.waitForURL('**/runs?q=status*');
check('it finds the run', (await page.locator('.line').count()) >= 2);

console.log('the keys');
await press('?');
check('the map opens', await page.locator('#keys').isVisible());
await press('Escape', 't');
check('the theme changes', await page.evaluate(() => document.documentElement.dataset.theme) === 'light');
await press('t', 't');

console.log('lines that are selected while they change, by keyboard');
const token = await page.locator('[name=csrf]').first().inputValue();
const origin = new URL(link).origin;
const send = (text) => page.request.post(`${base}/runs`, {form: {csrf: token, text}, headers: {origin}});
await send('hello');
let line;
for (let number = 1; number < 6; number += 1) { // on a busy machine the turn waits before its line is marked: send another
  await page.goto(`${base}/runs`, {waitUntil: 'load'});
  loads = 0;
  const text = `a table in Lisbon, once more, number ${number}`;
  await send(text);
  line = page.locator('.line', {hasText: text});
  await line.first().waitFor({timeout: 30000});
  for (let count = 0; count < 9 && !await line.first().evaluate((row) => row.hasAttribute('data-chosen')); count += 1) await press('j');
  await press('x');
  if (await line.first().evaluate((row) => { row.dataset.seen = 'before'; return row.querySelector('.s-waiting') === null; })) break;
}
await line.and(page.locator('.line:not([data-seen])')).first().waitFor({timeout: 30000});
await line.first().locator('.s-waiting').waitFor({timeout: 30000});
check('the line is another, and still selected', await line.first().evaluate((row) => !row.dataset.seen && row.querySelector('[data-pick]').checked));
check('it is still chosen and has the focus', await line.first().evaluate((row) => row.hasAttribute('data-chosen') && row.contains(document.activeElement)));
check('without a reload', loads === 0);
await press('c', 'Enter');
await page.waitForURL('**/bulk/new?*');
check('the count comes first', (await page.locator('h1').innerText()) === 'Cancel 1 turn?');
const bulkNew = page.url();
check('the button of the job is reached', await tabTo('Cancel 1 turn'));
await press('Enter');
await page.waitForURL(/bulk.[0-9a-f-]+/);
await page.locator('.s-done').waitFor({timeout: 30000});
check('the job is done', (await page.locator('#bulk-progress').innerText()).includes('1 done'));
const bulkJob = page.url().split('?')[0];

console.log('a link that answers one question');
const asked = (await send('a table in Lisbon for the link')).url();
await page.goto(asked, {waitUntil: 'load'});
await page.locator('#run-questions .card').waitFor({timeout: 30000});
await press('g', 'i');
await page.waitForURL('**/inbox');
await page.locator('.card').first().waitFor();
check('the button is reached', await tabTo('Make a link'));
await press('Enter');
const address = page.locator('.address');
await address.waitFor();
const stranger = await browser.newContext({viewport: {width: 360, height: 740}});
const link1 = await stranger.newPage();
link1.on('console', (said) => { if (said.type() === 'error' && !said.text().includes('410 (Gone)')) faults.push(said.text()); });
await link1.goto(await address.innerText(), {waitUntil: 'load'});
check('a stranger reads the exact arguments', (await link1.locator('.exact').innerText()).includes('by the <b>river</b>'));
await link1.screenshot({path: `${shots}/asked-360.png`, fullPage: true});
await link1.evaluate(axe);
faults.push(...await link1.evaluate(async () => (await window.axe.run()).violations
  .filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => `asked: ${one.id}`)));
await link1.getByRole('button', {name: 'Approve'}).click();
check('the answer is taken', (await link1.locator('.notice').innerText()).includes('You can close this page'));
await link1.goto(await address.innerText(), {waitUntil: 'load'});
check('the address works once', await link1.locator('.card').count() === 0 && await link1.locator('.fault').isVisible());
await stranger.close();

console.log('a worker is killed in the middle of a call');
const sent = await send('survey the shop');
await page.goto(sent.url(), {waitUntil: 'load'});
loads = 0;
const row = page.locator('li.is-call', {hasText: 'survey'});
await row.waitFor({timeout: 30000});
await row.locator('summary').click();
const worker = row.locator('dt', {hasText: 'worker'}).locator('xpath=following-sibling::dd');
await worker.waitFor({timeout: 60000});
const first = await worker.innerText();
process.kill(Number(first.split(':').pop()), 'SIGKILL');
const killed = Date.now();
await row.locator('rect.b-lost').waitFor({timeout: 120000});
note(`${Date.now() - killed} ms from the kill to the broken bar`);
check('the bar is broken and goes on', await row.locator('rect.b-tool').count() === 2);
check('without a reload, and what was open is still open', loads === 0 && await row.locator('details').evaluate((fold) => fold.open));
await page.screenshot({path: `${shots}/run-broken.png`, fullPage: true});
await page.locator('.said-by-agent').waitFor({timeout: 120000});
check('the run ends on another worker', (await worker.innerText()) !== first);

console.log('every page, in two widths and two themes');
const failed = await send('fail please');
const waiting = (await send('Lisbon for the screenshots')).url();
const watch = await context.newPage();
await watch.goto(waiting);
await watch.locator('#run-questions .card').waitFor({timeout: 60000});
await watch.goto(run);
const step = await watch.locator('a', {hasText: 'What the model saw'}).last().getAttribute('href');
const whole = await watch.locator('a', {hasText: 'The whole result'}).first().getAttribute('href');
await watch.close();
const thread = await page.locator('.head a', {hasText: 'thread'}).getAttribute('href');
const inside = (address) => address.replace(base, '').replace(/^.console/, '');
const pages = {overview: '/', inbox: '/inbox', runs: '/runs', 'no-runs': '/runs?q=status:expired', run: inside(run), waiting: inside(waiting),
  broken: inside(page.url()), failed: inside(failed.url()), fork: inside(fork), compare: `${inside(forked)}/compare`,
  prompt: inside(step), result: inside(whole), threads: '/threads', thread: inside(thread), agents: '/agents', usage: '/usage',
  groups: '/groups', pulse: '/pulse', channels: '/channels', workers: '/workers', 'bulk-new': inside(bulkNew), 'bulk-job': inside(bulkJob),
  bulk: '/bulk', audit: '/audit', sessions: '/sessions', error: '/nothing', keys: '/runs'};
const gone = ['error'];  // the browser notes a status of 404 as an error
for (const [width, theme] of [[1280, 'light'], [1280, 'dark'], [360, 'light'], [360, 'dark']]) {
  const view = await browser.newContext({viewport: {width, height: width < 500 ? 740 : 860}, colorScheme: theme, storageState: await context.storageState()});
  const looked = await view.newPage();
  let now = '';
  looked.on('console', (said) => { if (said.type() === 'error' && !gone.includes(now)) faults.push(`${now}: ${said.text()}`); });
  looked.on('request', (request) => { if (!request.url().startsWith(origin)) outside.push(request.url()); });
  for (const [name, path] of Object.entries(pages)) {
    now = name;
    await looked.goto(base + path, {waitUntil: 'load'});
    if (name === 'keys') await looked.keyboard.press('?');
    await looked.waitForTimeout(250);
    await looked.screenshot({path: `${shots}/${name}-${width}-${theme}.png`, fullPage: name !== 'keys'});
    const over = await looked.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (over > 0) faults.push(`${name} at ${width}: wider than the screen by ${over}`);
    const heads = await looked.locator('h1').count();
    if (heads !== 1) faults.push(`${name}: ${heads} headings of the page`);
    if (!/^.+ · Chordage$/.test(await looked.title())) faults.push(`${name}: its title is ${await looked.title()}`);
    const here = looked.locator('nav [aria-current]');
    if (await here.count() === 1) {
      const box = await here.boundingBox();
      if (box.x < 0 || box.x + box.width > width) faults.push(`${name} at ${width}: its place in the navigation is out of sight`);
    } else if (name !== 'error') faults.push(`${name}: not in the navigation`);
    await looked.evaluate(axe);
    const found = await looked.evaluate(async () => (await window.axe.run()).violations
      .filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => `${one.id}: ${one.nodes[0].html.slice(0, 200)}`));
    for (const one of found) faults.push(`${name} ${width} ${theme}: ${one}`);
  }
  await view.close();
}
const unknown = await browser.newContext({viewport: {width: 360, height: 740}});
const login = await unknown.newPage();
await login.goto(`${base}/`, {waitUntil: 'load'});
await login.screenshot({path: `${shots}/login-360.png`});
await login.evaluate(axe);
faults.push(...await login.evaluate(async () => (await window.axe.run()).violations
  .filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => `login: ${one.id}`)));
await unknown.close();

console.log('without a script');
const plain = await browser.newContext({javaScriptEnabled: false, storageState: await context.storageState()});
const still = await plain.newPage();
await still.goto(`${base}/inbox`);
await still.getByRole('button', {name: 'Approve', exact: true}).first().click();
check('a question is approved', still.url().endsWith('/inbox?done=approved'));
await plain.close();

check(`nothing was asked of another host ${outside}`, outside.length === 0);
await browser.close();
for (const fault of faults) console.log(`fault: ${fault}`);
process.exit(faults.length ? 1 : 0);
