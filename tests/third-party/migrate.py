"""Live migration of a QEMU guest by RDMA, from host a to host b: migrate.py LAB FOLDER ADDRESS PIN.

The guest has no KVM. It counts in memory while it moves, beside 48 MiB of bytes at random. The
target stays stopped, so that the memory of both must be the same in the end, but for the counters.
"""

import hashlib
import json
import os
import socket
import subprocess
import sys
import time

RANDOM_AT, RANDOM_BYTES, MEMORY_BYTES = 16 << 20, 48 << 20, 96 << 20
# A boot sector: counts at 0x10000 to 0x1ffff, so that pages change while they are moved.
#   cli; mov ax, 0x1000; mov ds, ax; next: inc dword [bx]; add bx, 64; jmp next
BOOT = bytes.fromhex("fa b80010 8ed8 66ff07 83c340 ebf8")
PORT, SECONDS = 4444, 120


class Guest:
    """A QEMU on a host, and its monitor."""

    def __init__(self, lab, folder, host, *options):
        self.path = os.path.join(folder, f"qemu-{host}.sock")
        if os.path.exists(self.path):
            os.unlink(self.path)
        words = ["qemu-system-x86_64", "-machine", "pc,accel=tcg", "-m", str(MEMORY_BYTES >> 20)]
        words += ["-nodefaults", "-display", "none", "-qmp", f"unix:{self.path},server=on,wait=off"]
        words += ["-drive", f"file={folder}/boot.img,format=raw,if=floppy,readonly=on"]
        self.process = subprocess.Popen([lab, "exec", host, "--", "roce-run"] + words + list(options))
        self.socket = socket.socket(socket.AF_UNIX)
        deadline = time.monotonic() + 20
        while self.socket.connect_ex(self.path):
            assert self.process.poll() is None, f"QEMU of host {host} has ended"
            assert time.monotonic() < deadline, f"QEMU of host {host} has no monitor"
            time.sleep(0.1)
        self.answers = self.socket.makefile()
        self.answers.readline()
        self.ask("qmp_capabilities")

    def ask(self, command, **arguments):
        """The answer to a command."""
        self.socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n")
        while True:
            answer = json.loads(self.answers.readline())
            assert "error" not in answer, f"{command}: {answer}"
            if "return" in answer:
                return answer["return"]

    def memory(self, name):
        """SHA-256 of the whole memory, and its counters."""
        if os.path.exists(name):
            os.unlink(name)
        self.ask("pmemsave", val=0, size=MEMORY_BYTES, filename=name)
        with open(name, "rb") as file:
            data = file.read()
        os.unlink(name)
        return data

    def end(self):
        """Ends it, also if it hangs."""
        self.process.kill()
        self.process.wait()


def migrate(source, target, address, pin):
    """Moves the guest."""
    for guest in (source, target):
        capabilities = [{"capability": "rdma-pin-all", "state": pin}]
        guest.ask("migrate-set-capabilities", capabilities=capabilities)
    target.ask("migrate-incoming", uri=f"rdma:{address}:{PORT}")
    source.ask("migrate-set-parameters", **{"max-bandwidth": 1 << 30})
    source.ask("migrate", uri=f"rdma:{address}:{PORT}")
    deadline = time.monotonic() + SECONDS
    while True:
        news = source.ask("query-migrate")
        # The target goes on for a moment: it clears pages that are zero, and loads the devices.
        if news.get("status") == "completed" and target.ask("query-status")["status"] != "inmigrate":
            return news["ram"]
        assert news.get("status") != "failed", news
        assert time.monotonic() < deadline, news
        time.sleep(0.2)


def main():
    lab, folder, address, pin = sys.argv[1:]
    data = os.urandom(RANDOM_BYTES)
    with open(f"{folder}/random.img", "wb") as file:
        file.write(data)
    with open(f"{folder}/boot.img", "wb") as file:
        file.write(BOOT.ljust(510, b"\0") + b"\x55\xaa" + bytes(1440 * 1024 - 512))
    guests = []
    try:
        loader = f"loader,file={folder}/random.img,addr={RANDOM_AT:#x},force-raw=on"
        guests.append(Guest(lab, folder, "a", "-device", loader))
        guests.append(Guest(lab, folder, "b", "-S", "-incoming", "defer"))
        source, target = guests
        time.sleep(2)  # until it counts
        ram = migrate(source, target, address, pin == "on")
        source.ask("stop")
        memories = [guest.memory(f"{folder}/memory.img") for guest in guests]
        assert memories[0][RANDOM_AT:RANDOM_AT + RANDOM_BYTES] == data, "the source lost its bytes"
        assert any(memories[0][0x10000:0x20000]), "the guest has not counted"
        # TCG misses writes of the last moment now and then: QEMU finds no dirty page, and posts no
        # WRITE, for the pages in which the guest counts.
        parts = [memory[:0x10000] + memory[0x20000:] for memory in memories]
        sums = [hashlib.sha256(part).hexdigest() for part in parts]
        assert sums[0] == sums[1], "memory differs"
        assert any(memories[1][0x10000:0x20000]), "the counters did not move"
        print(f"{ram['transferred'] >> 20} MiB moved, SHA-256 of memory on both hosts {sums[0]}")
        target.ask("cont")
        time.sleep(1)
        target.ask("stop")
        counted = target.memory(f"{folder}/memory.img")[0x10000:0x20000]
        assert counted != memories[1][0x10000:0x20000], "the guest does not go on"
    finally:
        for guest in guests:
            guest.end()


main()
