#!/usr/bin/env python3
"""Checks the ICRC of every RoCE frame in pcap files, with nothing of roced's: zlib's CRC-32 and the rules of IBTA annexes A16, A17.

usage: icrc_check.py FILE.pcap...     prints its findings; exit code 0 when every frame's ICRC holds, 1 otherwise
"""

import struct
import sys
import zlib

ROCE_PORT = 4791
ETHERNET = 1


def frames(path):
    """The frames of a classic pcap, in either byte order."""
    with open(path, "rb") as file:
        data = file.read()
    order = {0xA1B2C3D4: "<", 0xA1B23C4D: "<", 0xD4C3B2A1: ">", 0x4D3CB2A1: ">"}.get(struct.unpack("<I", data[:4])[0])
    if order is None:
        sys.exit(f"{path}: not a pcap file")
    if struct.unpack(order + "I", data[20:24])[0] != ETHERNET:
        sys.exit(f"{path}: not Ethernet")
    at = 24
    while at < len(data):
        captured, original = struct.unpack(order + "II", data[at + 8 : at + 16])
        if captured != original:
            sys.exit(f"{path}: a frame was cut short")
        yield data[at + 16 : at + 16 + captured]
        at += 16 + captured


def ones(data, *places):
    """The bytes with those at `places` taken as 0xff: fields that routers change."""
    data = bytearray(data)
    for place in places:
        data[place] = 0xFF
    return bytes(data)


def icrc_holds(frame):
    """True or false for a RoCE frame, None for any other."""
    at, kind = 14, struct.unpack(">H", frame[12:14])[0]
    while kind in (0x8100, 0x88A8):
        kind = struct.unpack(">H", frame[at + 2 : at + 4])[0]
        at += 4
    packet = frame[at:]
    if kind == 0x0800 and packet[9] == 17:
        header = (packet[0] & 15) * 4
        packet = packet[: struct.unpack(">H", packet[2:4])[0]]
        covered = ones(packet[:header], 1, 8, 10, 11)  # TOS, TTL, checksum
    elif kind == 0x86DD and packet[6] == 17:
        header = 40
        packet = packet[: header + struct.unpack(">H", packet[4:6])[0]]
        # traffic class and flow label (all of the first word but the version), hop limit
        covered = bytes([packet[0] | 0x0F]) + ones(packet[1:header], 0, 1, 2, 6)
    elif kind == 0x8915 and packet[6] == 0x1B:
        packet = packet[: 40 + struct.unpack(">H", packet[4:6])[0]]
        covered = bytes([packet[0] | 0x0F]) + ones(packet[1:40], 0, 1, 2, 6) + ones(packet[40:-4], 4)
        return struct.pack("<I", zlib.crc32(b"\xff" * 8 + covered)) == packet[-4:]
    else:
        return None
    udp = packet[header:]
    if struct.unpack(">H", udp[2:4])[0] != ROCE_PORT:
        return None
    body, icrc = udp[:-4], udp[-4:]
    covered += ones(body, 6, 7, 8 + 4)  # UDP checksum; FECN, BECN and reserved bits of the BTH
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + covered)) == icrc


def main(paths):
    if not paths:
        sys.exit(__doc__)
    good = bad = 0
    for path in paths:
        for number, frame in enumerate(frames(path), 1):
            holds = icrc_holds(frame)
            if holds is None:
                continue
            good += holds
            bad += not holds
            if not holds:
                print(f"{path}: the ICRC of frame {number} does not hold")
    print(f"{good} of {good + bad} ICRCs hold")
    sys.exit(bad > 0)


main(sys.argv[1:])
