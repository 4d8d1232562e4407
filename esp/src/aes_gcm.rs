//! AES-GCM of AWS-LC, with the nonces of RFC 4106.

use std::fmt;

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use roced_transport::wire::esp::{Aead, BadIcv, ICV_BYTES, IV_BYTES};
use zeroize::Zeroizing;

use crate::key::{KeyMaterial, SALT_BYTES};

/// A key in the form in which frames are sealed and opened, with its salt. AWS-LC clears it when it
/// is dropped.
pub struct AesGcm {
    key: LessSafeKey,
    salt: Zeroizing<[u8; SALT_BYTES]>,
}

impl AesGcm {
    /// AES-128 or AES-256, by the length of the key.
    pub fn new(material: &KeyMaterial) -> Self {
        let (key, salt) = material.split();
        let algorithm = if key.len() == AES_128_GCM.key_len() { &AES_128_GCM } else { &AES_256_GCM };
        let key = UnboundKey::new(algorithm, key).expect("the key has the length of one of them");
        Self { key: LessSafeKey::new(key), salt: Zeroizing::new(*salt) }
    }

    /// Salt and IV (RFC 4106 4).
    fn nonce(&self, iv: [u8; IV_BYTES]) -> Nonce {
        let mut nonce = [0; NONCE_LEN];
        nonce[..SALT_BYTES].copy_from_slice(&*self.salt);
        nonce[SALT_BYTES..].copy_from_slice(&iv);
        Nonce::assume_unique_for_key(nonce)
    }
}

impl Aead for AesGcm {
    fn seal(&self, iv: [u8; IV_BYTES], aad: &[u8], in_out: &mut [u8]) -> [u8; ICV_BYTES] {
        let sealed = self.key.seal_in_place_separate_tag(self.nonce(iv), Aad::from(aad), in_out);
        let tag = sealed.expect("AES-GCM seals up to 64 GiB");
        tag.as_ref().try_into().expect("the tag of AES-GCM has 16 bytes")
    }

    fn open(&self, iv: [u8; IV_BYTES], aad: &[u8], sealed: &[u8], plain: &mut [u8]) -> Result<(), BadIcv> {
        let (ciphertext, icv) = sealed.split_last_chunk::<ICV_BYTES>().ok_or(BadIcv)?;
        let opened = self.key.open_separate_gather(self.nonce(iv), Aad::from(aad), ciphertext, icv, plain);
        opened.map_err(|_| BadIcv)
    }

    fn open_in_place(&self, iv: [u8; IV_BYTES], aad: &[u8], sealed: &mut [u8]) -> Result<(), BadIcv> {
        self.key.open_in_place(self.nonce(iv), Aad::from(aad), sealed).map_err(|_| BadIcv)?;
        Ok(())
    }
}

impl fmt::Debug for AesGcm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AesGcm(…)")
    }
}
