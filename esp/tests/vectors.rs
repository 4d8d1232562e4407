//! Published and recorded vectors: AES-GCM in ESP, whole frames byte for byte.

use roced_esp::{AesGcm, InboundParameters, InboundSa, KeyMaterial};
use roced_transport::wire::esp::{
    Aead, BadIcv, Encapsulation, EspFrame, EspHeader, EspRefusal, Numbering, PlainFrame, SequenceSource, Spi,
    TAIL_BYTES_MAX,
};
use roced_types::gid_of;
use zeroize::Zeroizing;

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u32> = hex.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

fn key(hex: &str) -> KeyMaterial {
    KeyMaterial::new(Zeroizing::new(bytes(hex))).expect("a key with its salt")
}

/// Key with salt, IV, SPI with sequence number, plaintext with trailer, ciphertext with ICV.
struct Vector {
    key: &'static str,
    iv: &'static str,
    aad: &'static str,
    plain: &'static str,
    sealed: &'static str,
}

/// From draft-mcgrew-gcm-test-01: both key lengths, sequence numbers of 32 and of 64 bits, a
/// packet without payload.
const PUBLISHED: [Vector; 6] = [
    Vector {
        key: "4c80cdefbb5d10da906ac73c3613a634 2e443b68",
        iv: "4956ed7e3b244cfe",
        aad: "00004321 8765432100000000",
        plain: "45000048699a000080114db7c0a80102c0a801010a9bf15638d301000001000000000000045f736970045f75647003736970
            0963796265726369747902646b000021000101020201",
        sealed: "fecf537e729d5b07dc30df528dd22b768d1b98736696a6fd348509fa13ceac34cfa2436f14a3f3cf65925bf1f4a13c5d
            15b21e1884f5ff6247aeabb786b93bce61bc17d768fd9732459018148f6cbe722fd04796562dfdb4",
    },
    Vector {
        key: "feffe9928665731c6d6a8f9467308308 cafebabe",
        iv: "facedbaddecaf888",
        aad: "0000a5f8 0000000a",
        plain: "4500003e698f000080114dccc0a80102c0a801010a980035002a2343b2d0010000010000000000000373697009637962
            65726369747902646b00000100010001",
        sealed: "deb22cd9b07c72c16e3a65beeb8df304a5a5897d33ae530f1ba76d5d114d2a5c3de81827c10e9a4f51330d0eec416642
            cfbb85a5b47e48a4ec3b9ba95d918bd183b70d3aa8bc6ee4c309e9d85a41ad4a",
    },
    Vector {
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab 11223344",
        iv: "0102030405060708",
        aad: "4a2cbfe3 00000002",
        plain: "4500003069a6400080062690c0a801029389155e0a9e008b2dc57ee0000000007002400020bf0000020405b401010402
            01020201",
        sealed: "ff425c9b724599df7a3bcd510194e00d6a78107f1b0b1cbf06efae9d65a5d763748a637985771d347f0545659f14e99d
            ef842d8eb335f4eecfdbf831824b4c4915956c96",
    },
    Vector {
        key: "abbccddef00112233445566778899aababbccddef00112233445566778899aab 73616c74",
        iv: "616e640169766563",
        aad: "17405e67 156f3126dd0db99b",
        plain: "636973636f0172756c657301746865016e6574776501646566696e6501746865746563686e6f6c6f6769657301746861
            7477696c6c01646566696e65746f6d6f72726f7701020201",
        sealed: "d4b7ed86a1777f2ea13d6973d324c69e7b43f826fb56831226508bebd2dceb18d0a6df10e5487df074113e14c641024e
            3e6773d91a62ee429b043a10e3efe6b012a49363412364f8c0cac587f249e56b11e24f30e44ccc76",
    },
    Vector {
        key: "7d773d00c144c525ac619d18c84a3f47 d9664267",
        iv: "43457e9182443bc6",
        aad: "335467ae ffffffff",
        plain: "01020201",
        sealed: "437f866bcb3f699fe9b0822bac961c4504bef270",
    },
    Vector {
        key: "6c6567616c697a656d6172696a75616e61616e64646f69746265666f72656961 7475726e",
        iv: "333021696765746d",
        aad: "796b6963 ffffffffffffffff",
        plain: "45000030da3a00008001df3bc0a80005c0a800010800c6cd020007006162636465666768696a6b6c6d6e6f7071727374
            01020201",
        sealed: "f97ab2aa356d8edce17644ac8c78e25dd24dedbb29ebf1b64a274b39b49c3a864cd3d78ca4ae68a32b42458fb57dbe82
            1dcc63b9d0937ba2945f669368661a329fb4c053",
    },
];

#[test]
fn published_vectors_hold() {
    for vector in &PUBLISHED {
        let gcm = AesGcm::new(&key(vector.key));
        let [aad, plain, mut sealed] = [vector.aad, vector.plain, vector.sealed].map(bytes);
        let iv = bytes(vector.iv).try_into().expect("eight bytes");
        let mut in_out = plain.clone();
        let icv = gcm.seal(iv, &aad, &mut in_out);
        in_out.extend(icv);
        assert_eq!(in_out, sealed);

        let mut opened = vec![0; plain.len()];
        assert_eq!(gcm.open(iv, &aad, &sealed, &mut opened), Ok(()));
        assert_eq!(opened, plain);
        assert_eq!(gcm.open_in_place(iv, &aad, &mut in_out), Ok(()));
        assert_eq!(in_out[..plain.len()], plain);

        // Each byte of ciphertext and ICV, IV, header.
        for at in 0..sealed.len() {
            sealed[at] ^= 1;
            assert_eq!(gcm.open(iv, &aad, &sealed, &mut opened), Err(BadIcv), "{at}");
            assert_eq!(gcm.open_in_place(iv, &aad, &mut sealed.clone()), Err(BadIcv), "{at}");
            sealed[at] ^= 1;
        }
        let other_iv = iv.map(|byte| byte ^ 0x40);
        assert_eq!(gcm.open(other_iv, &aad, &sealed, &mut opened), Err(BadIcv));
        assert_eq!(gcm.open(iv, &aad[1..], &sealed, &mut opened), Err(BadIcv));
        // Shorter than an ICV.
        assert_eq!(gcm.open(iv, &aad, &sealed[..15], &mut []), Err(BadIcv));
        assert_eq!(gcm.open_in_place(iv, &aad, &mut sealed[..15]), Err(BadIcv));
    }
}

const KEY: &str = "000102030405060708090a0b0c0d0e0f a0a1a2a3";

/// A SEND with 16 bytes of payload from its UDP header on. Its ICRC is no real one.
const DATAGRAM: &str =
    "c00012b700300000 6440ffff0000001100000000 8001000000000001 726f6365642065737020766563746f72 deadbeef";

/// SPI, sequence number, IV, ciphertext; made with another library, and decrypted by tshark.
const SEALED: &str = "00001001 00000001 0000000000000001
    86710e456cb47750e32cb9e8db04947711f2198316f480a26df18b116ec93c778fdbabd85511e6b2537e8bca118101fbb350efc7";

/// The ICVs of both ways of numbering.
const ICVS: [(Numbering, &str); 2] =
    [(Numbering::Short, "bd7e90a76c072f1be238fe54924a3be6"), (Numbering::Extended, "db5043274a15b2d200871b91adbc0a1a")];

/// Ethernet and IP in front of the datagram and of the frame of ESP, with checksums by hand.
const HEADERS: [(&str, &str, Encapsulation); 3] = [
    (
        "02000000000202000000000108004500004400004000401126950a0900010a090002",
        "02000000000202000000000108004500006800004000403226500a0900010a090002",
        Encapsulation::Esp,
    ),
    (
        "02000000000202000000000186dd60000000003011 40fd000000000000000000000000000001fd000000000000000000000000000002",
        "02000000000202000000000186dd60000000005432 40fd000000000000000000000000000001fd000000000000000000000000000002",
        Encapsulation::Esp,
    ),
    (
        "02000000000202000000000108004500004400004000401126950a0900010a090002",
        "020000000002020000000001080045000070000040004011 26690a0900010a090002 1194 1194 005c 0000",
        Encapsulation::EspInUdp,
    ),
];

#[test]
fn recorded_frames_are_sealed_and_opened_byte_for_byte() {
    let key = key(KEY);
    let gcm = AesGcm::new(&key);
    let spi = Spi::new(0x1001).expect("it is not reserved");
    for (number, (plain, esp, encapsulation)) in HEADERS.into_iter().enumerate() {
        for (numbering, icv) in ICVS {
            let plain = bytes(&[plain, DATAGRAM].concat());
            let expected = bytes(&[esp, SEALED, icv].concat());
            let sequence = SequenceSource::new(numbering, None, None).reserve(1).expect("the first").next();
            let header = EspHeader { spi, sequence: sequence.expect("one"), numbering, iv: [0, 0, 0, 0, 0, 0, 0, 1] };
            let mut buffer = [&vec![0; encapsulation.header_bytes()], &plain[..], &[0; TAIL_BYTES_MAX]].concat();
            let frame = PlainFrame::read(&mut buffer, plain.len(), encapsulation).expect("a frame of RoCEv2");
            assert_eq!(frame.seal(&header, &gcm), expected, "{number}");

            let [source, destination] = if number == 1 {
                ["fd00::1", "fd00::2"].map(|address| gid_of(address.parse().expect("an address")))
            } else {
                ["10.9.0.1", "10.9.0.2"].map(|address| gid_of(address.parse().expect("an address")))
            };
            let parameters = InboundParameters { spi, source, destination, encapsulation, numbering };
            let mut inbound = InboundSa::new(parameters, &key);
            let pieces = [&expected[..]];
            let read = EspFrame::read(&pieces).expect("a frame of ESP");
            let mut scratch = vec![0; expected.len()];
            assert_eq!(inbound.open(&read, &mut scratch), Ok(&plain[..]), "{number}");
            assert_eq!((inbound.packets(), inbound.bytes(), inbound.highest_sequence()), (1, 52, 1));
            assert_eq!(inbound.open(&read, &mut scratch), Err(EspRefusal::Replayed));

            // The other association of the same key: another numbering, addresses, encapsulation.
            let other = |parameters| InboundSa::new(parameters, &key).open(&read, &mut [0; 200]).map(<[u8]>::len);
            let numbering = if numbering == Numbering::Short { Numbering::Extended } else { Numbering::Short };
            assert_eq!(other(InboundParameters { numbering, ..parameters }), Err(EspRefusal::BadIcv));
            let wrong = Err(EspRefusal::OtherAssociation);
            assert_eq!(other(InboundParameters { source: destination, ..parameters }), wrong);
            assert_eq!(other(InboundParameters { destination: source, ..parameters }), wrong);
            assert_eq!(other(InboundParameters { spi: Spi::new(0x1002).expect("another"), ..parameters }), wrong);
            let encapsulation = match encapsulation {
                Encapsulation::Esp => Encapsulation::EspInUdp,
                Encapsulation::EspInUdp => Encapsulation::Esp,
            };
            assert_eq!(other(InboundParameters { encapsulation, ..parameters }), wrong);
        }
    }
}
