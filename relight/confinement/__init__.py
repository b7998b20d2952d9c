"""What holds agents' code in: Landlock, seccomp and privileges, applied by a process to itself without any privilege.

Each mechanism is a module of its own, in ctypes: the packages for them are unfinished or no longer kept.
"""
