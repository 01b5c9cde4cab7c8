"""What the consumer of a stepped run does with it.

`verbs` carries a verb out, `settle` decides what becomes of a held reply, `opening` opens its calls, `held_run` changes
what is held, `planned` handles plans.
"""
