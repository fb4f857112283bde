//! Keys of ssh, of the kind ed25519, as recipients and identities of age.
//!
//! The crate `age` has them too, but only together with rsa, for whose crate there is a warning without a remedy (RUSTSEC-2023-0071).
//! The stanza is that of age's own ssh-ed25519 recipient: `-> ssh-ed25519 <4 bytes of SHA-256 of the key> <share>`.

use super::secret::fill_random;
use age::{DecryptError, EncryptError, Identity, Recipient};
use age_core::{
    format::{FileKey, Stanza},
    primitives::{aead_decrypt, aead_encrypt, hkdf},
    secrecy::ExposeSecret,
};
use base64::{Engine, prelude::BASE64_STANDARD_NO_PAD};
use curve25519_dalek::{edwards::CompressedEdwardsY, montgomery::MontgomeryPoint};
use sha2::{Digest, Sha256, Sha512};
use ssh_key::{PrivateKey, PublicKey};
use std::{collections::HashSet, fmt, io};
use zeroize::Zeroizing;

const TAG: &str = "ssh-ed25519";
const LABEL: &[u8] = b"age-encryption.org/v1/ssh-ed25519";
const FILE_KEY_BYTES: usize = 16;

/// The public half: its bytes as ssh stores them, and the point for the exchange of keys.
#[derive(Clone, PartialEq, Eq)]
struct PublicPart {
    wire: Vec<u8>,
    point: MontgomeryPoint,
}

impl PublicPart {
    fn new(key: &PublicKey) -> Option<Self> {
        let ed25519 = key.key_data().ed25519()?;
        let point = CompressedEdwardsY(ed25519.0).decompress()?.to_montgomery();
        let wire = key.to_bytes().ok()?;
        Some(Self { wire, point })
    }

    /// The words that a stanza names the key by.
    fn tag(&self) -> String {
        BASE64_STANDARD_NO_PAD.encode(&Sha256::digest(&self.wire)[..4])
    }

    /// The key that wraps a file key, from both shares and the point that both sides compute.
    fn wrapping_key(
        &self,
        share: &MontgomeryPoint,
        common: MontgomeryPoint,
    ) -> Zeroizing<[u8; 32]> {
        let tweak = Zeroizing::new(hkdf(&self.wire, LABEL, &[]));
        let common = Zeroizing::new(common.mul_clamped(*tweak).to_bytes());
        let salt = [share.to_bytes(), self.point.to_bytes()].concat();
        Zeroizing::new(hkdf(&salt, LABEL, &*common))
    }
}

/// A public key of ssh that something is sealed for.
#[derive(Clone, PartialEq, Eq)]
pub struct SshRecipient {
    public: PublicPart,
    text: String,
}

impl SshRecipient {
    /// Reads a line of `authorized_keys` without options: `ssh-ed25519 AAAA… comment`.
    ///
    /// # Errors
    /// The reason in words.
    pub(super) fn parse(line: &str) -> Result<Self, String> {
        let key = PublicKey::from_openssh(line).map_err(|error| error.to_string())?;
        let public = PublicPart::new(&key);
        let public = public
            .ok_or_else(|| format!("keys of the kind {} are not supported", key.algorithm()))?;
        let words: Vec<_> = line.split_whitespace().take(2).collect();
        Ok(Self {
            public,
            text: words.join(" "),
        })
    }
}

impl fmt::Display for SshRecipient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Recipient for SshRecipient {
    fn wrap_file_key(
        &self,
        file_key: &FileKey,
    ) -> Result<(Vec<Stanza>, HashSet<String>), EncryptError> {
        let mut secret = Zeroizing::new([0; 32]);
        fill_random(&mut *secret).map_err(|error| io::Error::other(error.line()))?;
        let share = MontgomeryPoint::mul_base_clamped(*secret);
        let key = self
            .public
            .wrapping_key(&share, self.public.point.mul_clamped(*secret));
        let stanza = Stanza {
            tag: TAG.to_owned(),
            args: vec![
                self.public.tag(),
                BASE64_STANDARD_NO_PAD.encode(share.to_bytes()),
            ],
            body: aead_encrypt(&key, file_key.expose_secret()),
        };
        Ok((vec![stanza], HashSet::new()))
    }
}

/// A private key of ssh.
pub(super) struct SshIdentity {
    public: PublicPart,
    scalar: Zeroizing<[u8; 32]>,
}

impl SshIdentity {
    /// From a key that is not encrypted.
    ///
    /// # Errors
    /// The reason in words.
    pub(super) fn new(key: &PrivateKey) -> Result<Self, String> {
        let pair = key.key_data().ed25519();
        let public = PublicPart::new(key.public_key());
        let (Some(pair), Some(public)) = (pair, public) else {
            return Err(format!(
                "keys of the kind {} are not supported, only ssh-ed25519",
                key.algorithm()
            ));
        };
        let seed = Zeroizing::new(pair.private.to_bytes());
        let mut scalar = Zeroizing::new([0; 32]);
        let mut hash = Zeroizing::new([0; 64]);
        hash.copy_from_slice(&Sha512::digest(*seed));
        scalar.copy_from_slice(&hash[..32]);
        Ok(Self { public, scalar })
    }
}

impl Identity for SshIdentity {
    fn unwrap_stanza(&self, stanza: &Stanza) -> Option<Result<FileKey, DecryptError>> {
        let [tag, share] = &stanza.args[..] else {
            return None;
        };
        if stanza.tag != TAG || *tag != self.public.tag() {
            return None;
        }
        Some(
            self.unwrap_share(share, &stanza.body)
                .ok_or(DecryptError::DecryptionFailed),
        )
    }
}

impl SshIdentity {
    fn unwrap_share(&self, share: &str, body: &[u8]) -> Option<FileKey> {
        let share: [u8; 32] = BASE64_STANDARD_NO_PAD.decode(share).ok()?.try_into().ok()?;
        let share = MontgomeryPoint(share);
        let common = share.mul_clamped(*self.scalar);
        // A share of low order: whoever sent it knows the common point without any key.
        if common.to_bytes() == [0; 32] {
            return None;
        }
        let key = self.public.wrapping_key(&share, common);
        let plain = Zeroizing::new(aead_decrypt(&key, FILE_KEY_BYTES, body).ok()?);
        let bytes: [u8; FILE_KEY_BYTES] = plain[..].try_into().ok()?;
        Some(FileKey::new(Box::new(bytes)))
    }
}
