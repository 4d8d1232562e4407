"""Values at random to a memcached and back, compared by their SHA-256: values.py HOST PORT MIB."""

import hashlib
import os
import socket
import sys


def main():
    host, port, mebibytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    server = socket.create_connection((host, port))
    answers = server.makefile("rb")
    sums = {}
    for number in range(mebibytes):
        # Sizes around powers of two, and their sum about a mebibyte a value.
        value = os.urandom((1 << 20) + number - mebibytes // 2)
        sums[number] = hashlib.sha256(value).digest()
        server.sendall(b"set key%d 0 0 %d\r\n" % (number, len(value)) + value + b"\r\n")
        answer = answers.readline()
        assert answer == b"STORED\r\n", answer
    wrong = 0
    for number, expected in sums.items():
        server.sendall(b"get key%d\r\n" % number)
        words = answers.readline().split()
        assert words[0] == b"VALUE", words
        value = answers.read(int(words[3]))
        assert answers.readline() == b"\r\n"
        assert answers.readline() == b"END\r\n"
        wrong += hashlib.sha256(value).digest() != expected
    print(f"{len(sums)} values, {wrong} wrong")
    sys.exit(wrong > 0)


main()
