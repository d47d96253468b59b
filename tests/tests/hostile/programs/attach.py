import threading, time

folder = "/run/overwinter/"
supervisor = knows["supervisor"]


def dial():
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    door.settimeout(10)
    door.connect(folder + "gateway.sock")
    return door


def ask(head):
    with dial() as door:
        try:
            door.sendall(head.encode())
            heard = door.recv(4096).decode()
        except ConnectionError:
            heard = ""
        return heard.split(" ")[1] if heard.startswith("HTTP/") else "closed"


def become(user):
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)


def head():
    """With the credentials that PID 1 has, if they can be read, and a secret of one's own."""
    try:
        it = json.load(open(folder + "attach"))
    except OSError:
        it = {"token": "0" * 64, "sandbox_id": knows["sandbox"], "incarnation": knows["incarnation"]}
    return ("POST /attach HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: overwinter-supervisor/1\r\n"
            "Authorization: Bearer %s\r\nOverwinter-Secret: %s\r\nOverwinter-Sandbox: %s\r\n"
            "Overwinter-Incarnation: %s\r\n\r\n" % (it["token"], "5" * 64, it["sandbox_id"], it["incarnation"]))


stolen = head()


def as_user(user):
    def tried():
        become(user)
        return ask(stolen)

    return tried


def readable(user):
    def tried():
        if user:
            become(user)
        open(folder + "attach").read()

    return tried


attempt("read by root", in_child(readable(0)))
attempt("read by user", in_child(readable(1000)))
attempt("list by user", in_child(lambda: become(1000) or "%d seen" % len(os.listdir(folder))))
attempt("second by root", in_child(lambda: ask(stolen)))
attempt("second by user", in_child(as_user(1000)))
attempt("second by supervisor", in_child(as_user(supervisor)))
attempt("second twice", in_child(as_user(supervisor)))
for name in ["attach", "incarnation", "new"]:
    attempt("write " + name, lambda: os.close(os.open(folder + name, os.O_WRONLY | os.O_CREAT)))
attempt("write rename", lambda: os.rename(folder + "attach", folder + "other"))
attempt("write unlink", lambda: os.unlink(folder + "gateway.sock"))
attempt("write chmod", lambda: os.chmod(folder + "attach", 0o666))
attempt("write mode of the socket", lambda: os.chmod(folder + "gateway.sock", 0o666))


def flood():
    """As many as there are descriptors, none of which says a word."""
    become(supervisor)
    held = []
    refused = 0
    for _ in range(2000):
        try:
            door = dial()
            door.setblocking(False)
            held.append(door)
        except OSError:
            refused += 1
    time.sleep(1)
    print("held", flush=True)
    return "%d" % len(held)


attempt("flood", in_child(flood))
# And with a valid head each, as fast as they are refused.
def storm():
    become(supervisor)
    for _ in range(500):
        ask(stolen)


attempt("storm", in_child(storm))
tell()
