#!/usr/bin/env python3
"""Writes the captures of RoCEv1 in tests/captures/rocev1, with scapy's layers (Ether, GRH, BTH, AETH) and nothing of roced's: the frames of
two hosts that are connected as those of transport/tests/pair are (addresses, numbers, PSNs, keys, memory), when the first makes the requests
that `conversation` lists. Linux's rxe has no RoCEv1, so this stands in for the frames of a peer.

usage: python3 -m venv /tmp/scapy && /tmp/scapy/bin/pip install scapy==2.8.0 && /tmp/scapy/bin/python tests/captures/rocev1.py

The ICRC is that of IBTA annex A16: over eight bytes of ones in place of an LRH, the GRH with traffic class, flow label and hop limit taken as
ones, and all from the BTH on, its fifth byte as ones.
"""

import pathlib
import struct
import zlib

from scapy.contrib.roce import AETH, BTH, GRH, opcode
from scapy.layers.l2 import Ether
from scapy.packet import Raw
from scapy.utils import wrpcap

FOLDER = pathlib.Path(__file__).parent / "rocev1"
MTU = 256
FIRST_PSN = 0xFFFFF0
QPNS = {1: 0x040005, 2: 0x080005}
VA, KEY, QKEY = 0x70000000, 0x00ABCD01, 0x11223344
IMM = bytes([1, 2, 3, 4])
NO_CREDITS = 0x1F


def memory(host, offset, length):
    """The initial contents of a host's memory."""
    return bytes(((at * 7 + (at >> 8) * 3) & 0xFF) ^ host for at in range(offset, offset + length))


def gid(host, ipv6):
    prefix = bytes([0xFD]) + bytes(14) if ipv6 else bytes(10) + bytes([0xFF, 0xFF, 10, 10, 0])
    return int.from_bytes(prefix + bytes([host]), "big")


def frame(sender, ipv6, operation, psn, headers=b"", payload=b"", ack_request=0, aeth=None):
    """A frame of host `sender` to the other."""
    receiver = 3 - sender
    pad = -len(payload) % 4
    bth = BTH(opcode=opcode(*operation)[0], migreq=1, padcount=pad, dqpn=QPNS[receiver], ackreq=ack_request, psn=psn & 0xFFFFFF, icrc=0)
    bth = bth / aeth if aeth else bth
    transport = bytes(bth / Raw(headers + payload + bytes(pad)))
    grh = GRH(ipver=6, tclass=0, flowlabel=0, paylen=len(transport), nexthdr=0x1B, hoplmt=64, sgid=gid(sender, ipv6), dgid=gid(receiver, ipv6))
    grh = bytes(grh)
    covered = bytearray(b"\xff" * 8 + grh + transport[:-4])
    covered[8] |= 0x0F
    for place in (9, 10, 11, 8 + 7, 8 + 40 + 4):
        covered[place] = 0xFF
    transport = transport[:-4] + struct.pack("<I", zlib.crc32(covered))
    mac = "02:00:00:00:00:%02x"
    return Ether(dst=mac % receiver, src=mac % sender, type=0x8915) / Raw(grh + transport)


def reth(remote, length):
    return struct.pack(">QII", VA + remote, KEY, length)


class Conversation:
    """Host 1 asks, host 2 answers at once."""

    def __init__(self, service, ipv6):
        self.service, self.ipv6, self.psn, self.msn, self.frames = service, ipv6, FIRST_PSN, 0, []

    def say(self, sender, name, psn, **rest):
        service = self.service if sender == 1 else "RC"
        self.frames.append(frame(sender, self.ipv6, (service, name), psn, **rest))

    def message(self, verb, payload, first=b"", imm=False):
        """A SEND or WRITE: cut to the path MTU, acknowledged at its end."""
        pieces = [payload[at : at + MTU] for at in range(0, len(payload), MTU)] or [b""]
        for number, piece in enumerate(pieces):
            begins, ends = number == 0, number == len(pieces) - 1
            position = {(1, 1): "ONLY", (1, 0): "FIRST", (0, 0): "MIDDLE", (0, 1): "LAST"}[begins, ends]
            name = f"{verb}_{position}" + ("_WITH_IMMEDIATE" if imm and ends else "")
            headers = (first if begins else b"") + (IMM if imm and ends else b"")
            asks = int(ends and self.service == "RC")
            self.say(1, name, self.psn, headers=headers, payload=piece, ack_request=asks)
            self.psn += 1
        if self.service == "RC":
            self.msn += 1
            self.say(2, "ACKNOWLEDGE", self.psn - 1, aeth=AETH(syndrome=NO_CREDITS, msn=self.msn))

    def send(self, offset, length, imm=False):
        self.message("SEND", memory(1, offset, length), imm=imm)

    def write(self, offset, length, remote, imm=False):
        self.message("RDMA_WRITE", memory(1, offset, length), first=reth(remote, length), imm=imm)

    def read(self, remote, length):
        self.say(1, "RDMA_READ_REQUEST", self.psn, headers=reth(remote, length), ack_request=1)
        self.msn += 1
        data = memory(2, remote, length)
        pieces = [data[at : at + MTU] for at in range(0, length, MTU)] or [b""]
        for number, piece in enumerate(pieces):
            begins, ends = number == 0, number == len(pieces) - 1
            position = {(1, 1): "ONLY", (1, 0): "FIRST", (0, 0): "MIDDLE", (0, 1): "LAST"}[begins, ends]
            aeth = AETH(syndrome=NO_CREDITS, msn=self.msn)
            headers = bytes(aeth) if begins or ends else b""
            self.say(2, f"RDMA_READ_RESPONSE_{position}", self.psn + number, headers=headers, payload=piece)
        self.psn += len(pieces)

    def atomic(self, name, remote, operands):
        headers = struct.pack(">QIQQ", VA + remote, KEY, *operands)
        self.say(1, name, self.psn, headers=headers, ack_request=1)
        self.msn += 1
        found = int.from_bytes(memory(2, remote, 8), "little")
        answer = bytes(AETH(syndrome=NO_CREDITS, msn=self.msn)) + struct.pack(">Q", found)
        self.say(2, "ATOMIC_ACKNOWLEDGE", self.psn, headers=answer)
        self.psn += 1

    def datagram(self, offset, length, imm=False):
        name = "SEND_ONLY" + ("_WITH_IMMEDIATE" if imm else "")
        deth = struct.pack(">II", QKEY, QPNS[1])
        self.say(1, name, self.psn, headers=deth + (IMM if imm else b""), payload=memory(1, offset, length))
        self.psn += 1


def conversation(service, ipv6):
    said = Conversation(service, ipv6)
    if service == "UD":
        for length in (0, 1, 100, 256):
            said.datagram(16, length)
        said.datagram(16, 61, imm=True)
        return said.frames
    for length in (600, 0, 1, 62, 63, 64, 256, 257):
        said.send(16, length)
    said.send(16, 61, imm=True)
    said.send(16, 512, imm=True)
    said.write(32, 2000, remote=0x40000)
    said.write(32, 10, remote=0x40001)
    said.write(32, 10, remote=0x40002, imm=True)
    said.write(32, 300, remote=0x40003, imm=True)
    if service == "RC":
        for length in (600, 0, 1, 256, 2049):
            said.read(0x60000, length)
        said.atomic("FETCH_ADD", 0x70000, (7, 0))
        said.atomic("COMPARE_SWAP", 0x70008, (0x1122334455667788, 99))
    return said.frames


def main():
    for service in ("RC", "UC", "UD"):
        for ipv6 in (False, True):
            frames = conversation(service, ipv6)
            for number, packet in enumerate(frames):
                packet.time = number
            wrpcap(str(FOLDER / f"{service.lower()}_{'ipv6' if ipv6 else 'ipv4'}.pcap"), frames)


main()
