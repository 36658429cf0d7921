import os, time
def add(a, b):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(1)
            open("@FOLDER@/late", "w").close()
            time.sleep(60)
        os._exit(0)
    return a + b
