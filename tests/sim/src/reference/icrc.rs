//! The invariant CRC of a frame (annex A17): CRC-32 over the fields that no router changes.

/// Eight tables: the CRC of a byte that `n` bytes follow.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 { crc >> 1 } else { crc >> 1 ^ 0xedb8_8320 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut table = 1;
    while table < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[table - 1][byte];
            tables[table][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    tables
}

fn crc(mut crc: u32, bytes: &[u8]) -> u32 {
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        let low = crc.to_le_bytes();
        crc = (0..8).fold(0, |sum, at| {
            let byte = if at < 4 { word[at] ^ low[at] } else { word[at] };
            sum ^ TABLES[7 - at][usize::from(byte)]
        });
    }
    rest.iter().fold(crc, |crc, byte| crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)])
}

/// The ICRC of a frame with the IP header at 14 and the BTH at `bth`; the frame ends before its
/// ICRC.
pub(crate) fn icrc(frame: &[u8], bth: usize) -> [u8; 4] {
    let mut head = frame[14..bth + 5].to_vec();
    if bth == 42 {
        // Type of service, time to live, header checksum.
        head[1] = 0xff;
        head[8] = 0xff;
        head[10..12].fill(0xff);
    } else {
        // Traffic class and flow label, hop limit.
        head[0] |= 0x0f;
        head[1..4].fill(0xff);
        head[7] = 0xff;
    }
    // UDP checksum, and FECN, BECN and the reserved bits beside them.
    let bth_in_head = bth - 14;
    head[bth_in_head - 2..bth_in_head].fill(0xff);
    head[bth_in_head + 4] = 0xff;
    let sum = crc(crc(crc(!0, &[0xff; 8]), &head), &frame[bth + 5..]);
    (!sum).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_crc_is_that_of_ethernet() {
        assert_eq!(!crc(!0, b"123456789"), 0xcbf4_3926);
        assert_eq!(!crc(!0, b"1234567890abcdefgh"), !crc(crc(!0, b"12345"), b"67890abcdefgh"));
    }
}
