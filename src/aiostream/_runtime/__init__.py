"""What there is once in a process, what a wait is, and the loops in which it waits."""
