"""The commands, as data.

Each is a module of this package with ``add_arguments(parser)`` and
``run(args) -> int``, which returns the exit status and raises NormgenError for an error
in the input.
"""

COMMANDS = {
    "render": "write the modules of one spec, of several, or of the whole project",
    "check": "tell which modules are stale, missing, edited by hand or orphaned",
    "diff": "show what render would change",
    "init": "write the spec of a model, from its type or its config.json",
    "explain": "tell what a spec computes, how it rounds, moves and runs",
    "schema": "print the JSON Schema of specs, for editors",
}
