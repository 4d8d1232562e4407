//! Key material as IKE and the kernel have it.

use std::fmt;

use thiserror::Error;
use zeroize::Zeroizing;

/// Bytes of the salt behind a key (RFC 4106 8.1).
pub(crate) const SALT_BYTES: usize = 4;

/// Lengths of AES-128 and AES-256, with the salt.
const LENGTHS: [usize; 2] = [16 + SALT_BYTES, 32 + SALT_BYTES];

/// Key and salt of `rfc4106(gcm(aes))`, of 128 or 256 bits.
///
/// ```
/// use roced_esp::KeyMaterial;
/// use zeroize::Zeroizing;
///
/// let key = KeyMaterial::new(Zeroizing::new(vec![7; 20]))?;
/// assert_eq!(format!("{key:?}"), "KeyMaterial(…)");
/// // AES-192, which is not supported.
/// assert!(KeyMaterial::new(Zeroizing::new(vec![7; 28])).is_err());
/// # Ok::<(), roced_esp::UnknownKeyLength>(())
/// ```
pub struct KeyMaterial(Zeroizing<Vec<u8>>);

/// Key and salt have another length than those of AES-128 and AES-256.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("key and salt of AES-GCM have 20 or 36 bytes, not {0}")]
pub struct UnknownKeyLength(pub usize);

impl KeyMaterial {
    /// A key with its salt behind it. The bytes stay where they are, and are cleared with it.
    ///
    /// # Errors
    /// [`UnknownKeyLength`].
    pub fn new(bytes: Zeroizing<Vec<u8>>) -> Result<Self, UnknownKeyLength> {
        if LENGTHS.contains(&bytes.len()) { Ok(Self(bytes)) } else { Err(UnknownKeyLength(bytes.len())) }
    }

    /// The key, of 16 or 32 bytes, and the salt.
    pub(crate) fn split(&self) -> (&[u8], &[u8; SALT_BYTES]) {
        self.0.split_last_chunk().expect("`new` checked the length")
    }
}

impl fmt::Debug for KeyMaterial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyMaterial(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_two_lengths_are_taken() {
        for length in 0..64 {
            let key = KeyMaterial::new(Zeroizing::new(vec![1; length]));
            assert_eq!(key.map(|key| key.split().0.len()).ok(), [20, 36].contains(&length).then(|| length - 4));
        }
    }

    #[test]
    fn the_salt_is_behind_the_key() {
        let key = KeyMaterial::new(Zeroizing::new((0..20).collect())).expect("20 bytes");
        assert_eq!(key.split(), (&(0..16).collect::<Vec<u8>>()[..], &[16, 17, 18, 19]));
    }
}
