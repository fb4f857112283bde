//! A root in two parts: a clear head, which says what maintenance needs, and a body that is sealed.
//!
//! The head has the id, times, sizes, tags, bases, segments, places of pages, and
//! liveness. So `list`, `forget`, `prune`, `copy` and the structure part of `verify` work on
//! it alone. It is a [`Root`](super::root::Root) whose private fields are empty. Everything else is
//! in the body: host, paths, options that excluded something, PostgreSQL facts, what was not
//! captured, statistics, the paths and digests in the list of pages. A member that is not known here is
//! private.
//!
//! In a repository, the head has one more member, [`SealedBody`]. This module cuts and joins; it
//! neither encrypts nor checks a proof.

use super::{
    json::{elements_of, parse_counted},
    seal::{open_sealed, seal},
};
use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Members of a root that anyone may read who sees the storage.
const CLEAR: [&str; 14] = [
    "format",
    "id",
    "tool",
    "time",
    "finished",
    "options",
    "tags",
    "totals",
    "bases",
    "segments",
    "pages",
    "liveness",
    "lists_of",
    "lists_digest",
];

/// How the host of a pseudonym begins.
pub const PSEUDONYM: &str = "sealed-";

/// The member of a head that has the body.
const SEALED: &str = "sealed";
/// The member of a root that names the source.
const SOURCE: &str = "source";
/// The list of pages, in which only the first path and the digest of each are private.
const PAGES: &str = "pages";
/// The private members of a page, and the members of the body that have those of all pages. A digest tells of two pages whether they are
/// the same, and of a guess whether it is right.
const OF_PAGES: [(&str, &str); 2] = [("first", "first_paths"), ("digest", "page_digests")];
/// The last member, which [`seal`] writes.
const DIGEST: &str = "blake3";

/// The body of a root, and the proof of both parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealedBody {
    /// Which document it is part of: a listed root may not take the place of a partial one, nor the
    /// reverse.
    pub kind: String,
    /// Generation of the key that the proof was made with.
    pub generation: u32,
    /// Number of the put key that made the proof, or that of people.
    pub author: String,
    /// An age file in base64, with the body as JSON.
    pub body: String,
    /// Keyed BLAKE3 of everything else in the document, as hexadecimal digits.
    pub proof: String,
}

/// A root that was cut in two.
#[derive(Debug, Clone, PartialEq)]
pub struct RootParts {
    head: Map<String, Value>,
    body: Map<String, Value>,
}

impl RootParts {
    /// Cuts a root that [`seal`] wrote. `None` if the bytes are no such document, or would not be
    /// the same after [`RootParts::join`].
    pub fn cut(root: &[u8]) -> Option<Self> {
        let mut all: Map<String, Value> = open_sealed(root, "").ok()?;
        all.remove(DIGEST);
        // A root that is sealed already, or that is no root, would not come back from `join`.
        if all.contains_key(SEALED) || !all.contains_key("id") {
            return None;
        }
        let mut body = Map::new();
        if let Some(Value::Array(pages)) = all.get_mut(PAGES) {
            for (member, of_all) in OF_PAGES {
                body.insert(of_all.to_owned(), take_of_pages(pages, member)?);
            }
        }
        let private = all.keys().filter(|name| !CLEAR.contains(&name.as_str()));
        for name in private.cloned().collect::<Vec<_>>() {
            let value = all.remove(&name)?;
            if body.insert(name, value).is_some() {
                return None;
            }
        }
        let parts = Self { head: all, body };
        // The parts are used only if they give the same bytes again: digests of roots must not
        // change.
        let is_same = parts.join().is_ok_and(|joined| joined == root);
        is_same.then_some(parts)
    }

    /// The backup that it is the root of.
    pub fn id(&self) -> &str {
        self.head
            .get("id")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The source as JSON: equal for equal sources.
    pub fn source(&self) -> Vec<u8> {
        let source = self.body.get(SOURCE).map(Value::to_string);
        source.unwrap_or_default().into_bytes()
    }

    /// The body as JSON.
    pub fn body(&self) -> Vec<u8> {
        Value::Object(self.body.clone()).to_string().into_bytes()
    }

    /// The document of a repository: the head, in which `pseudonym` stands for the source, and a
    /// sealed body.
    ///
    /// `prove` gets the bytes that the proof is made of.
    ///
    /// # Errors
    /// As [`seal`].
    pub fn document(
        &self,
        pseudonym: &str,
        mut sealed: SealedBody,
        prove: impl FnOnce(&[u8]) -> String,
    ) -> Result<Vec<u8>> {
        let mut document = self.head.clone();
        let source = serde_json::json!({ "host": pseudonym, "paths": [] });
        document.insert(SOURCE.to_owned(), source);
        sealed.proof = prove(&proven_bytes(&document, &sealed));
        let sealed = serde_json::to_value(&sealed).unwrap_or_default();
        document.insert(SEALED.to_owned(), sealed);
        seal(&document)
    }

    /// The root as it was before it was cut.
    ///
    /// # Errors
    /// As [`seal`].
    pub fn join(&self) -> Result<Vec<u8>> {
        let mut all = self.head.clone();
        for (name, value) in &self.body {
            if OF_PAGES.iter().all(|(_, of_all)| name != of_all) {
                all.insert(name.clone(), value.clone());
            }
        }
        for (member, of_all) in OF_PAGES {
            let values = self.body.get(of_all).and_then(Value::as_array);
            let pages = all.get_mut(PAGES).and_then(Value::as_array_mut);
            let pairs = pages
                .into_iter()
                .flatten()
                .zip(values.into_iter().flatten());
            pairs.for_each(|(page, value)| page[member] = value.clone());
        }
        seal(&all)
    }
}

/// Empties a member of each page; returns what they were. `None` if a page has not that member.
fn take_of_pages(pages: &mut [Value], member: &str) -> Option<Value> {
    let mut values = Vec::with_capacity(pages.len());
    for page in pages {
        let value = page.get_mut(member)?;
        values.push(std::mem::replace(value, Value::String(String::new())));
    }
    Some(Value::Array(values))
}

/// The bytes that a proof is made of: the head, and what is said of the body.
fn proven_bytes(head: &Map<String, Value>, sealed: &SealedBody) -> Vec<u8> {
    let without_proof = SealedBody {
        proof: String::new(),
        ..sealed.clone()
    };
    let sealed = serde_json::to_value(without_proof).unwrap_or_default();
    // The members of a map are in the order of their names: one text for one content.
    serde_json::json!([head, sealed]).to_string().into_bytes()
}

/// A head with its sealed body, as a repository stores it.
#[derive(Debug, Clone, PartialEq)]
pub struct SealedRoot {
    head: Map<String, Value>,
    /// The body, still sealed.
    pub sealed: SealedBody,
}

impl SealedRoot {
    /// Reads a document; `None` if it is a root without a sealed body. Messages call it `name`.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::error::ErrorKind::Corrupt) if it is damaged.
    pub fn open(bytes: &[u8], name: &str) -> Result<Option<Self>> {
        let mut head: Map<String, Value> = open_sealed(bytes, name)?;
        head.remove(DIGEST);
        let Some(sealed) = head.remove(SEALED) else {
            return Ok(None);
        };
        let sealed = serde_json::from_value(sealed)
            .map_err(|error| Error::corrupt(format!("{name} is damaged")).because(error))?;
        Ok(Some(Self { head, sealed }))
    }

    /// The backup that the head says.
    pub fn id(&self) -> &str {
        self.head
            .get("id")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The bytes that the proof is made of.
    pub fn proven_bytes(&self) -> Vec<u8> {
        proven_bytes(&self.head, &self.sealed)
    }

    /// The whole root, with the body as JSON.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`](crate::error::ErrorKind::Corrupt) if the body is none; messages call the document `name`.
    pub fn join(mut self, body: &[u8], name: &str) -> Result<Vec<u8>> {
        let body = parse_counted(body, elements_of(body.len()))
            .map_err(|error| Error::corrupt(format!("{name} is damaged")).because(error))?;
        self.head.remove(SOURCE);
        RootParts {
            head: self.head,
            body,
        }
        .join()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::{ClusterInfo, EntryName, NotCaptured, PageAt, Root, RunStats, SourceInfo};
    use proptest::prelude::*;

    fn page(first: &[u8]) -> PageAt {
        PageAt {
            stream: 1,
            first: EntryName(first.to_vec()),
            entries: 8192,
            manifest_offset: Some(7),
            digest: "secret-ab".into(),
            ..PageAt::default()
        }
    }

    fn root() -> Root {
        Root {
            format: 1,
            id: "20261121T054501Z-k3f9qz".into(),
            tool: "fullbore 0.1".into(),
            time: "2026-11-21T05:45:01Z".into(),
            boot: "secret-boot".into(),
            source: SourceInfo {
                host: "secret-host".into(),
                paths: vec![EntryName(b"/secret/\xff".to_vec())],
                contents: true,
            },
            postgres: Some(ClusterInfo {
                version: "secret-18".into(),
                ..ClusterInfo::default()
            }),
            left_out: vec!["--exclude=secret".into()],
            tags: [("kind".to_owned(), "weekly".to_owned())].into(),
            pages: vec![page(b"secret-a"), page(b"secret-\xffb")],
            not_captured: vec![NotCaptured {
                path: EntryName(b"secret-c".to_vec()),
                reason: "x".into(),
            }],
            run: RunStats {
                seconds: 0.1 + 0.2,
                ..RunStats::default()
            },
            ..Root::default()
        }
    }

    fn sealed_body(body: &[u8]) -> SealedBody {
        SealedBody {
            kind: "root".into(),
            generation: 1,
            author: "0".repeat(16),
            body: String::from_utf8(body.to_vec())
                .unwrap()
                .chars()
                .rev()
                .collect(),
            proof: String::new(),
        }
    }

    #[test]
    fn a_head_is_a_root_without_anything_private() {
        let bytes = seal(&root()).unwrap();
        let parts = RootParts::cut(&bytes).unwrap();
        let document = parts
            .document("sealed-0123", sealed_body(&parts.body()), |_| "p".into())
            .unwrap();
        assert!(!String::from_utf8_lossy(&document).contains("secret"));
        let head = Root::open(&document, "the head").unwrap();
        let expected = Root {
            boot: String::new(),
            source: SourceInfo {
                host: "sealed-0123".into(),
                ..SourceInfo::default()
            },
            postgres: None,
            left_out: Vec::new(),
            pages: vec![
                PageAt {
                    digest: String::new(),
                    ..page(b"")
                };
                2
            ],
            not_captured: Vec::new(),
            run: RunStats::default(),
            ..root()
        };
        assert_eq!(head, expected);
    }

    #[test]
    fn a_root_is_joined_as_it_was_cut() {
        let bytes = seal(&root()).unwrap();
        let parts = RootParts::cut(&bytes).unwrap();
        assert_eq!(parts.join().unwrap(), bytes);
        let document = parts
            .document("x", sealed_body(b"{}"), |_| "p".into())
            .unwrap();
        let read = SealedRoot::open(&document, "it").unwrap().unwrap();
        assert_eq!(read.id(), root().id);
        assert_eq!(read.join(&parts.body(), "it").unwrap(), bytes);
    }

    #[test]
    fn a_proof_is_made_of_everything_but_itself() {
        let bytes = seal(&root()).unwrap();
        let parts = RootParts::cut(&bytes).unwrap();
        let mut proven = Vec::new();
        let sealed = sealed_body(b"body");
        let document = parts
            .document("x", sealed.clone(), |bytes| {
                proven = bytes.to_vec();
                "proof".into()
            })
            .unwrap();
        let read = SealedRoot::open(&document, "it").unwrap().unwrap();
        assert_eq!(read.proven_bytes(), proven);
        assert_eq!(read.sealed.proof, "proof");
        for other in [
            SealedBody {
                kind: "partial".into(),
                ..sealed.clone()
            },
            SealedBody {
                generation: 2,
                ..sealed.clone()
            },
            SealedBody {
                author: "1".repeat(16),
                ..sealed.clone()
            },
            SealedBody {
                body: "bodx".into(),
                ..sealed.clone()
            },
        ] {
            let other = SealedRoot {
                sealed: other,
                ..read.clone()
            };
            assert_ne!(other.proven_bytes(), proven);
        }
        for name in CLEAR
            .into_iter()
            .filter(|name| read.head.contains_key(*name))
        {
            let mut other = read.clone();
            other.head.insert(name.to_owned(), Value::from("other"));
            assert_ne!(other.proven_bytes(), proven, "{name}");
        }
    }

    #[test]
    fn what_is_no_root_is_not_cut() {
        for bytes in [&b""[..], b"0123456789", b"{}"] {
            assert!(RootParts::cut(bytes).is_none());
        }
        let mut bytes = seal(&root()).unwrap();
        bytes.push(b' ');
        assert!(RootParts::cut(&bytes).is_none());
        let parts = RootParts::cut(&seal(&root()).unwrap()).unwrap();
        let document = parts
            .document("x", sealed_body(b""), |_| String::new())
            .unwrap();
        assert!(RootParts::cut(&document).is_none(), "it is cut already");
    }

    proptest! {
        #[test]
        fn any_time_of_a_run_comes_back(seconds in any::<f64>().prop_filter("JSON has no others", |s| s.is_finite())) {
            let bytes = seal(&Root { run: RunStats { seconds, ..RunStats::default() }, ..root() }).unwrap();
            let parts = RootParts::cut(&bytes).unwrap();
            prop_assert_eq!(parts.join().unwrap(), bytes);
        }
    }
}
