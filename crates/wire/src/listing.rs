//! Listings as they are sent: pages, each in a frame of its own, that the side which asked reads while others come.
//!
//! Neither side holds a listing in encoded form, and the one that asked checks each object before it takes memory for the next.

use crate::message::{encode, not_a_message};
use crate::{
    ListedObject, Version,
    key::{check_key, is_below},
};
use fullbore_format::error::{Error, ErrorKind, Result};
use minicbor::Decoder;

/// Objects of a listing at most. They take up to 200 MiB here if all keys are long, and 100 if they are those of backups.
pub const MAX_OBJECTS: usize = 1 << 20;

/// Bytes of a listing at most, on its way.
pub const MAX_LISTING_BYTES: u64 = 128 << 20;

/// Objects of a page. With the longest keys and versions a page fits a frame.
const PAGE_OBJECTS: usize = 1000;

/// Bytes of a version at most.
const MAX_VERSION_BYTES: usize = 256;

/// The pages of a listing; one without objects has an empty one.
pub fn pages(listed: &[ListedObject]) -> impl Iterator<Item = Vec<u8>> {
    let none = listed.is_empty().then(|| encode_page(listed));
    none.into_iter()
        .chain(listed.chunks(PAGE_OBJECTS).map(encode_page))
}

fn encode_page(listed: &[ListedObject]) -> Vec<u8> {
    let rows = listed.iter().map(|object| {
        let version = object.version.as_ref().map(Version::as_str);
        (object.key.as_str(), object.bytes, version)
    });
    encode(&rows.collect::<Vec<_>>())
}

/// The error for a listing that is too long to be sent.
pub fn too_many(place: &str) -> Error {
    let message = format!("cannot list {place} over a connection");
    Error::new(ErrorKind::Unsupported, message)
        .because(format!("it has more than {MAX_OBJECTS} objects"))
        .hint("run the command on the host of the repository")
}

/// A listing that comes page by page.
#[derive(Debug)]
pub struct ListingReader<'p> {
    prefix: &'p str,
    /// The objects that were read.
    pub listed: Vec<ListedObject>,
}

impl<'p> ListingReader<'p> {
    /// Makes a reader of a listing of `prefix`.
    pub fn new(prefix: &'p str) -> Self {
        Self {
            prefix,
            listed: Vec::new(),
        }
    }

    /// Reads the pages in these bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] for anything else than objects below the prefix in their order, [`ErrorKind::Unsupported`] if there are more
    /// than [`MAX_OBJECTS`].
    pub fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let refused = |error| not_a_message().because(error);
        let mut decoder = Decoder::new(bytes);
        while decoder.position() < bytes.len() {
            let rows = decoder.array().map_err(refused)?;
            for _ in 0..rows.unwrap_or_default() {
                let row = decoder.decode().map_err(refused)?;
                self.add(row)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, (key, bytes, version): (&str, u64, Option<&str>)) -> Result<()> {
        let last = self.listed.last();
        let is_next = last.is_none_or(|last| last.key.as_str() < key);
        let is_sound = check_key(key).is_ok()
            && is_below(key, self.prefix)
            && version.is_none_or(|version| version.len() <= MAX_VERSION_BYTES);
        if !is_next || !is_sound {
            return Err(not_a_message().because("a listing is wrong"));
        }
        if self.listed.len() == MAX_OBJECTS {
            return Err(too_many("this"));
        }
        self.listed.push(ListedObject {
            key: key.to_owned(),
            bytes,
            version: version.map(Version::new),
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::MAX_DATA;

    fn object(key: String) -> ListedObject {
        ListedObject {
            key,
            bytes: u64::MAX,
            version: Some(Version::new("v".repeat(MAX_VERSION_BYTES))),
        }
    }

    #[test]
    fn pages_fit_frames_and_are_read_as_they_were_written() {
        let name = "n".repeat(crate::MAX_NAME_BYTES - 8);
        for count in [0, 1, PAGE_OBJECTS, 2 * PAGE_OBJECTS + 1] {
            let key = |number| format!("backups/{name}/{name}/{name}/{number:07}");
            let listed: Vec<_> = (0..count).map(|number| object(key(number))).collect();
            let mut reader = ListingReader::new("backups");
            for page in pages(&listed) {
                assert!(page.len() <= MAX_DATA, "{}", page.len());
                reader.take(&page).unwrap();
            }
            assert_eq!(reader.listed, listed);
        }
    }

    #[test]
    fn a_listing_that_claims_or_repeats_objects_takes_no_memory_for_them() {
        for wrong in [
            &[0x9a, 0xff, 0xff, 0xff, 0xff][..],
            &[0x81, 0x83, 0x60, 0, 0xf6],
            &[0x82, 0x83, 0x61, b'a', 0, 0xf6, 0x83, 0x61, b'a', 0, 0xf6],
            &[0x9f, 0xff, 0xff],
        ] {
            let mut reader = ListingReader::new("");
            reader.take(wrong).unwrap_err();
            assert!(reader.listed.len() <= 1);
        }
        let mut elsewhere = ListingReader::new("backups");
        let page = encode_page(&[object("intents/a".to_owned())]);
        elsewhere.take(&page).unwrap_err();
    }
}
