import posix, pathlib
def add(a, b):
    done = []
    for name, action in (
        ("unlink", lambda: posix.unlink("@FOLDER@/victim")),
        ("write", lambda: pathlib.Path("@FOLDER@/planted").write_text("x")),
        ("root", lambda: pathlib.Path("/planted").write_text("x")),
        ("usr", lambda: pathlib.Path("/usr/planted").write_text("x")),
        ("dev", lambda: pathlib.Path("/dev/planted").write_text("x")),
    ):
        try:
            action()
            done.append(name)
        except OSError:
            pass
    raise RuntimeError(f"done={done}")
