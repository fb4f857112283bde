//! Answers of a store in XML, before the crate reads them: listings without keys of others, and deletions that name the keys that
//! were asked for.
//!
//! The crate ends a listing at the first key that it does not take, such as `logs//x`, and it stops this process if a store names an
//! object in other words than it was asked. A bucket belongs to others too, and stores differ, so neither may happen.

use object_store::path::Path;
use quick_xml::{
    Reader,
    escape::{escape, unescape},
    events::Event,
};
use serde::Deserialize;
use std::collections::BTreeMap;

/// Elements of a page that stand for one object or one prefix, in S3's protocol and in Azure's.
const ENTRIES: [&[u8]; 4] = [b"Contents", b"CommonPrefixes", b"Blob", b"BlobPrefix"];

/// Elements that hold the key of an entry.
const KEYS: [&[u8]; 3] = [b"Key", b"Prefix", b"Name"];

/// Returns the page of a listing without the entries whose keys the crate does not take: they are not ours, whatever they are.
///
/// A page that is no XML is returned as it is; the crate says so.
pub(super) fn without_foreign_keys(page: Vec<u8>) -> Vec<u8> {
    let Some(foreign) = foreign_entries(&page) else {
        return page;
    };
    if foreign.is_empty() {
        return page;
    }
    let mut kept = Vec::with_capacity(page.len());
    let mut index = 0;
    for (start, end) in foreign {
        kept.extend_from_slice(&page[index..start]);
        index = end;
    }
    kept.extend_from_slice(&page[index..]);
    kept
}

/// Returns where the entries with foreign keys begin and end; `None` if the page is not to be read.
fn foreign_entries(page: &[u8]) -> Option<Vec<(usize, usize)>> {
    let mut reader = Reader::from_reader(page);
    let mut foreign = Vec::new();
    let mut entry = None;
    let mut key_start = None;
    let mut is_foreign = false;
    loop {
        // An entry is cut out with its tags: from before its first event to behind its last one.
        let before = position(&reader)?;
        match reader.read_event().ok()? {
            Event::Start(element) => {
                let name = element.name();
                if entry.is_none() && ENTRIES.contains(&name.as_ref()) {
                    entry = Some(before);
                    is_foreign = false;
                } else if entry.is_some() && KEYS.contains(&name.as_ref()) {
                    key_start = Some(position(&reader)?);
                }
            }
            Event::End(element) => {
                let name = element.name();
                if let Some(start) = key_start.filter(|_| KEYS.contains(&name.as_ref())) {
                    is_foreign |= !is_taken(page.get(start..before)?);
                    key_start = None;
                } else if let Some(start) = entry.filter(|_| ENTRIES.contains(&name.as_ref())) {
                    if is_foreign {
                        foreign.push((start, position(&reader)?));
                    }
                    entry = None;
                }
            }
            Event::Eof => return Some(foreign),
            _ => {}
        }
    }
}

fn position(reader: &Reader<&[u8]>) -> Option<usize> {
    usize::try_from(reader.buffer_position()).ok()
}

/// Returns whether the crate takes the key that stands in a page like this.
fn is_taken(text: &[u8]) -> bool {
    let text = str::from_utf8(text).ok();
    let key = text.and_then(|text| unescape(text).ok());
    key.is_some_and(|key| Path::parse(key).is_ok())
}

/// The body of a request that deletes objects.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AskedDeletion {
    #[serde(default)]
    object: Vec<AskedObject>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AskedObject {
    key: String,
}

/// The answer of a store: it names at least the objects that it did not delete.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AnsweredDeletion {
    #[serde(default)]
    error: Vec<DeletionError>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
struct DeletionError {
    key: String,
    code: String,
    message: String,
}

/// Returns the answer to the deletion `asked`, with an element for each of its keys, named as it was asked for.
///
/// A store may name an object with its bucket before the key.
///
/// # Errors
/// The reason, if the answer cannot be read, or names an object that was not asked for.
pub(super) fn deletion_of(asked: &[u8], answer: Vec<u8>) -> Result<Vec<u8>, String> {
    let unreadable = |_| "the store's answer to a deletion is not one".to_owned();
    let asked: AskedDeletion = quick_xml::de::from_reader(asked).map_err(unreadable)?;
    let answered: AnsweredDeletion =
        quick_xml::de::from_reader(answer.as_slice()).map_err(unreadable)?;
    let mut errors = BTreeMap::new();
    for error in answered.error {
        let key = asked_key(&asked, &error.key).ok_or(
            "the store says that it could not delete an object that it was not asked to delete",
        )?;
        errors.insert(key, error);
    }
    // The crate wants an element for each key that it asked for; some stores leave out those that were deleted.
    let mut text = String::from("<DeleteResult>");
    for object in &asked.object {
        let key = escape(&object.key);
        match errors.get(object.key.as_str()) {
            None => text += &format!("<Deleted><Key>{key}</Key></Deleted>"),
            Some(error) => {
                let (code, message) = (escape(&error.code), escape(&error.message));
                text += &format!(
                    "<Error><Key>{key}</Key><Code>{code}</Code><Message>{message}</Message></Error>"
                );
            }
        }
    }
    text += "</DeleteResult>";
    Ok(text.into_bytes())
}

/// Returns the key that was asked for, by the name that the store has for it.
fn asked_key<'a>(asked: &'a AskedDeletion, named: &str) -> Option<&'a str> {
    let mut keys = asked.object.iter().map(|object| object.key.as_str());
    if let Some(key) = keys.clone().find(|key| *key == named) {
        return Some(key);
    }
    let is_end_of = |key: &&str| {
        let before = named.strip_suffix(*key);
        before.is_some_and(|before| before.ends_with('/'))
    };
    keys.find(is_end_of)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ASKED: &[u8] =
        b"<Delete><Object><Key>r/a</Key></Object><Object><Key>r/b &amp; c</Key></Object></Delete>";

    fn text(bytes: &[u8]) -> String {
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn a_page_loses_the_keys_of_others_and_nothing_else() {
        let entry = |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size></Contents>");
        let page = |keys: &[&str]| {
            let entries: String = keys.iter().map(|key| entry(key)).collect();
            format!(
                "<ListBucketResult><Prefix>x//y</Prefix>{entries}<IsTruncated>false</IsTruncated></ListBucketResult>"
            )
        };
        let kept = ["r/a", "r/b &amp; c", "r/\u{e4}"];
        let all = [
            "r//x", kept[0], "r/./x", kept[1], "r/../x", "r/&#1;", kept[2], "a//",
        ];
        let cleaned = without_foreign_keys(page(&all).into_bytes());
        assert_eq!(text(&cleaned), page(&kept));
        let azure = "<EnumerationResults><Blobs><Blob><Name>a//b</Name><Properties/></Blob><Blob><Name>c</Name></Blob></Blobs></EnumerationResults>";
        assert_eq!(
            text(&without_foreign_keys(azure.into())),
            "<EnumerationResults><Blobs><Blob><Name>c</Name></Blob></Blobs></EnumerationResults>"
        );
        assert_eq!(text(&without_foreign_keys(b"<a><b".to_vec())), "<a><b");
    }

    #[test]
    fn an_answer_to_a_deletion_names_the_keys_as_they_were_asked_for() {
        let answer = |key: &str| {
            format!(
                "<DeleteResult><Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
            )
        };
        let denied = "<DeleteResult><Deleted><Key>r/a</Key></Deleted><Error><Key>r/b &amp; c</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>";
        for named in ["r/b &amp; c", "/vault/r/b &amp; c"] {
            let cleaned = deletion_of(ASKED, answer(named).into_bytes()).unwrap();
            assert_eq!(text(&cleaned), denied, "{named}");
        }
        for named in ["r/c", "", "xr/a"] {
            deletion_of(ASKED, answer(named).into_bytes()).unwrap_err();
        }
        let quiet = deletion_of(ASKED, b"<DeleteResult/>".to_vec()).unwrap();
        assert_eq!(text(&quiet).matches("<Deleted>").count(), 2);
        deletion_of(ASKED, b"<html>".to_vec()).unwrap_err();
    }

    proptest! {
        #[test]
        fn no_answer_of_a_store_stops_the_process(cut in 0..400usize, bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let page = "<ListBucketResult><Contents><Key>r//x</Key></Contents><Contents><Key>a</Key></Contents></ListBucketResult>";
            let denied = "<DeleteResult><Error><Key>r/a</Key><Code>c</Code><Message>m</Message></Error></DeleteResult>";
            for whole in [page, denied] {
                let offset = cut.min(whole.len());
                let changed = [&whole.as_bytes()[..offset], &bytes, &whole.as_bytes()[offset..]].concat();
                let cleaned = without_foreign_keys(changed.clone());
                prop_assert!(cleaned.len() <= changed.len());
                let _ = deletion_of(ASKED, changed); // an error, or an answer
            }
        }
    }
}
