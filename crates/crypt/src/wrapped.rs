//! Small files that are sealed for people: headers and payloads by the crate `age`.

use super::{identity::UserIdentity, recipient::UserRecipient};
use age::{DecryptError, Decryptor, Encryptor};
use fullbore_format::error::{Error, ErrorKind, Result};
use std::io::{self, Read, Write};
use zeroize::Zeroizing;

/// Bytes of such a file at most.
const MAX_BYTES: u64 = 4 << 20;

/// Is this an age file for a passphrase?
pub fn is_for_passphrase(bytes: &[u8]) -> bool {
    Decryptor::new(bytes).is_ok_and(|decryptor| decryptor.is_scrypt())
}

/// An age file with `secret`, which each of `recipients` can open. A passphrase must be alone.
///
/// # Errors
/// [`ErrorKind::Usage`] if the recipients do not go together, and what a plugin says.
pub fn wrap_secret(secret: &[u8], recipients: &[UserRecipient]) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    let sealed = encryptor(recipients)?
        .wrap_output(&mut out)
        .and_then(|mut writer| {
            writer.write_all(secret)?;
            writer.finish().map(drop)
        });
    sealed.map_err(|error| Error::io("could not encrypt a key", error))?;
    Ok(out)
}

/// The header of a new age file for people.
pub(super) fn encryptor(recipients: &[UserRecipient]) -> Result<Encryptor> {
    let recipients: Vec<_> = recipients
        .iter()
        .map(UserRecipient::to_age)
        .collect::<Result<_>>()?;
    encryptor_for(&recipients)
}

pub(super) fn encryptor_for(recipients: &[Box<dyn age::Recipient>]) -> Result<Encryptor> {
    Encryptor::with_recipients(recipients.iter().map(|recipient| &**recipient))
        .map_err(|error| Error::new(ErrorKind::Usage, "cannot encrypt").because(error.to_string()))
}

/// The content of an age file, or `None` if it is for none of these keys. Messages call it `name`.
///
/// # Errors
/// [`ErrorKind::Corrupt`] if the file is damaged, and what a plugin says.
pub fn unwrap_secret(
    bytes: &[u8],
    identities: &[UserIdentity],
    name: &str,
) -> Result<Option<Zeroizing<Vec<u8>>>> {
    let decryptor = Decryptor::new(bytes).map_err(|error| damaged_file(name, error.to_string()))?;
    // A file for keys is no work for a passphrase, and the reverse: age tries each identity until one answers.
    let reader = match decryptor.decrypt(identities.iter().map(UserIdentity::as_age)) {
        Ok(reader) => reader,
        Err(error) if is_another_key(&error) => return Ok(None),
        Err(error) => return Err(unwrap_error(&error, name)),
    };
    // With all room from the start: a vector that grows leaves copies behind.
    let mut plain = Zeroizing::new(Vec::with_capacity(bytes.len().min(MAX_BYTES as usize)));
    let read: io::Result<usize> = reader.take(MAX_BYTES).read_to_end(&mut plain);
    read.map_err(|_| damaged_file(name, "its content is not as it was sealed".to_owned()))?;
    Ok(Some(plain))
}

fn damaged_file(name: &str, reason: String) -> Error {
    Error::corrupt(format!("{name} is damaged")).because(reason)
}

/// Is the file for another key than those that were tried? With a passphrase age cannot tell a wrong one from damage.
pub(super) fn is_another_key(error: &DecryptError) -> bool {
    matches!(
        error,
        DecryptError::NoMatchingKeys
            | DecryptError::DecryptionFailed
            | DecryptError::KeyDecryptionFailed
    )
}

pub(super) fn unwrap_error(error: &DecryptError, name: &str) -> Error {
    let message = format!("could not open {name}");
    match error {
        DecryptError::InvalidHeader | DecryptError::InvalidMac => {
            Error::corrupt(format!("{name} is damaged")).because(error.to_string())
        }
        DecryptError::UnknownFormat => {
            Error::new(ErrorKind::Unsupported, message).because(error.to_string())
        }
        error => Error::new(ErrorKind::Permission, message).because(error.to_string()),
    }
}
