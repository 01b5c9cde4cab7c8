"""What is wrong with a fleet: probes of its settings, services, processes and rows, each within its own time."""
