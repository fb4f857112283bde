//! Encryption: files of the age format, the keys of a repository, and the keys of people.
//!
//! Everything that is sealed is a complete [age](https://age-encryption.org/v1) file, which stock `age -d` opens. Headers for people
//! (recipients, ssh keys, passphrases, plugins) are made by the crate `age`; payloads are sealed here, chunk by chunk, as its own
//! writer is half as fast and knows no positions.
//!
//! This crate does not know where bytes are stored. No secret is printed: types that hold one have a [`Debug`](std::fmt::Debug) that
//! leaves it out, and clear their memory when they are dropped.

mod archive;
mod identity;
mod object;
mod options;
mod passphrase;
mod payload;
mod recipient;
mod ring;
mod secret;
mod ssh;
mod wrapped;

pub use archive::{
    KIND_BYTES, OpeningReader, PositionalBytes, SealedFile, SealingWriter, is_sealed,
    wants_passphrase,
};
pub use fullbore_format::author::Author;
pub use identity::{UserIdentity, parse_identities};
pub use object::{
    OBJECT_PREFIX_BYTES, ObjectHeader, ObjectSealer, open_by_person, open_object,
    plain_object_bytes, plain_object_range, seal_object, stored_object_bytes, stored_object_range,
};
pub use object::{damaged_chunk, no_object};
pub use options::KeyOptions;
pub use passphrase::{Passphrase, Prompt};
pub use payload::{
    CHUNK_BYTES, ChunkOpener, SEALED_CHUNK_BYTES, SealObserver, TAG_BYTES, plain_bytes,
    sealed_bytes,
};
pub use recipient::{UserRecipient, new_identity, parse_recipients, recipients_of_word};
pub use ring::only_adds;
pub use ring::{Access, Generation, KeyRing, parse_fingerprint};
pub use secret::{Secret, random_author};
pub use ssh::SshRecipient;

pub use wrapped::{is_for_passphrase, unwrap_secret, wrap_secret};
