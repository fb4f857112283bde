//! Entries of a scan on their way between hosts.
//!
//! The entries are a page of the manifest, so the reader of pages checks each path, number and map,
//! wherever it comes from. Beside the page stand the facts of the scan that a backup does not keep.

use super::words::{RunWords, run_words, runs, wrong_words};
use fullbore_format::{
    entry::{Entry, Time},
    error::Result,
    page::{EntryState, decode_entries, encode_entries},
};
use fullbore_pipeline::{
    frame::Scanned,
    known::{BaseEntry, Trust},
};
use minicbor::{Decode, Encode, bytes::ByteVec};

/// Bytes of a page at most, before compression. A sparse file with the most runs that a tar can
/// hold, 2²⁰, has some 10 MiB.
pub(super) const MAX_PAGE_BYTES: usize = 16 << 20;

/// Entries in archive order.
#[derive(Debug, Encode, Decode)]
pub(super) struct ListedWords {
    #[n(0)]
    page: ByteVec,
    /// One for each entry.
    #[n(1)]
    facts: Vec<FactWords>,
}

impl ListedWords {
    /// # Errors
    /// Those of [`encode_entries`].
    pub(super) fn of<'a>(listed: impl Iterator<Item = &'a Scanned> + Clone) -> Result<Self> {
        let facts = listed.clone().map(FactWords::of).collect();
        let entries = listed.map(|scanned| (&scanned.entry, &scanned.state));
        Ok(Self {
            page: encode_entries(entries)?.into(),
            facts,
        })
    }

    /// # Errors
    /// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt).
    pub(super) fn scanned(self) -> Result<Vec<Scanned>> {
        let entries = page_entries(&self.page)?;
        if entries.len() != self.facts.len() {
            return Err(wrong_words("entries and facts do not match"));
        }
        let facts = self.facts.into_iter();
        facts
            .zip(entries)
            .map(|(facts, (entry, state))| facts.scanned(entry, state))
            .collect()
    }
}

/// Reads the entries of a page of the other host.
///
/// # Errors
/// [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt).
pub(super) fn page_entries(page: &[u8]) -> Result<Vec<(Entry, EntryState)>> {
    decode_entries(page, MAX_PAGE_BYTES).map_err(|error| wrong_words(&error.line()))
}

/// The facts of a [`Scanned`] beside its entry and state.
#[derive(Debug, Encode, Decode)]
struct FactWords {
    #[n(0)]
    born: Option<(i64, u32)>,
    #[n(1)]
    home: Option<(u64, u64)>,
    #[n(2)]
    exposed: bool,
    #[n(3)]
    is_first: bool,
    #[n(4)]
    known: Option<KnownWords>,
}

impl FactWords {
    fn of(scanned: &Scanned) -> Self {
        Self {
            born: scanned.born.map(|time| (time.seconds, time.nanos)),
            home: scanned.home,
            exposed: scanned.exposed,
            is_first: scanned.is_first,
            known: scanned.known.as_ref().map(KnownWords::of),
        }
    }

    fn scanned(self, entry: Entry, state: EntryState) -> Result<Scanned> {
        let known = self.known.map(|known| known.known(&entry)).transpose()?;
        Ok(Scanned {
            born: self.born.map(|(seconds, nanos)| Time { seconds, nanos }),
            home: self.home,
            exposed: self.exposed,
            is_first: self.is_first,
            known,
            ..Scanned::new(entry, state)
        })
    }
}

/// How much is certain about a file in an earlier backup: as much of a [`BaseEntry`] as reading needs.
#[derive(Debug, Encode, Decode)]
struct KnownWords {
    #[n(0)]
    trust: u8,
    #[n(1)]
    changed: Option<Vec<RunWords>>,
}

const TRUSTS: [Trust; 4] = [
    Trust::Same,
    Trust::Content,
    Trust::Unverified,
    Trust::Nothing,
];

impl KnownWords {
    fn of(known: &BaseEntry) -> Self {
        let trust = TRUSTS.iter().position(|trust| *trust == known.trust);
        Self {
            trust: trust.unwrap_or(TRUSTS.len()) as u8,
            changed: known.changed.as_ref().map(|runs| run_words(runs)),
        }
    }

    /// The known state of a file, without the places of its content.
    fn known(self, entry: &Entry) -> Result<BaseEntry> {
        let trust = TRUSTS.get(usize::from(self.trust));
        let trust = *trust.ok_or_else(|| wrong_words("its trust is wrong"))?;
        let mut known = BaseEntry::without_places(entry, trust);
        let changed = self
            .changed
            .map(|words| runs(words, u64::MAX))
            .transpose()?;
        known.changed = changed.map(Into::into);
        Ok(known)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::words::{decoded, encoded},
        *,
    };
    use fullbore_format::entry::{ByteRun, EntryKind};
    use proptest::prelude::*;

    fn scanned(path: &str) -> Scanned {
        let entry = Entry {
            path: path.into(),
            kind: EntryKind::File { size: 7, map: None },
            ..Entry::default()
        };
        Scanned::new(entry, EntryState::Whole)
    }

    fn words(listed: &[Scanned]) -> ListedWords {
        decoded(&encoded(&ListedWords::of(listed.iter()).unwrap())).unwrap()
    }

    #[test]
    fn entries_arrive_with_their_facts() {
        let first = Scanned {
            born: Some(Time {
                seconds: -5,
                nanos: 7,
            }),
            home: Some((8, u64::MAX)),
            is_first: true,
            ..scanned("a")
        };
        let state = EntryState::Unreadable("why".to_owned());
        let second = Scanned {
            exposed: true,
            state,
            ..scanned("b")
        };
        let mut third = scanned("c");
        let mut known = BaseEntry::without_places(&third.entry, Trust::Unverified);
        known.changed = Some([ByteRun { offset: 1, len: 2 }].into());
        third.known = Some(known);
        let listed = [first, second, third];
        let arrived = words(&listed).scanned().unwrap();
        assert_eq!(format!("{arrived:?}"), format!("{listed:?}"));
    }

    #[test]
    fn a_list_whose_facts_do_not_fit_its_entries_is_refused() {
        let mut listed = words(&[scanned("a"), scanned("b")]);
        listed.facts.pop();
        assert!(listed.scanned().is_err());
        let wrong_order = words(&[scanned("b"), scanned("a")]);
        let error = wrong_order.scanned().unwrap_err().to_string();
        assert!(error.contains("another host"), "{error}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_list_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decoded::<ListedWords>(&bytes).and_then(ListedWords::scanned);
        }
    }
}
