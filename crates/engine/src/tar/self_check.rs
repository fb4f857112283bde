//! Compares the members of an own stream with the description in the stream.
//!
//! Mostly a page follows the entries that it describes, so only the digests of the entries since the
//! last page are kept. The root comes last and lists the pages. A stream without service frames cannot
//! be compared.

use fullbore_format::{
    digest::{Digest, hex},
    entry::{EntryKind, EntryPath},
    error::{Error, quoted},
    page::{ManifestPage, Record},
    root::{FORMAT, Root},
    segment::{Label, Service},
    text::counted,
};
use fullbore_repository::archive::Selection;
use fullbore_repository::archive::missing::MissingParts;
use std::collections::{HashMap, HashSet};

/// Maximum number of members before the label: with lz4 the label follows the first frame.
pub(crate) const MAX_UNLABELED: usize = 1025;

/// Maximum number of members between two pages: about 100 MB. Mostly it is less than a page, but in
/// a stream of a source that was not in order, all pages follow the last member.
const MAX_UNPAGED: usize = 1 << 19;

/// Compares the members of a stream with the pages that follow them.
#[derive(Debug, Default)]
pub(crate) struct SelfCheck {
    /// Entries to compare; without a selection, records are collected instead.
    selection: Option<Selection>,
    /// Collected records, without the fields that only a restore needs.
    records: Vec<Record>,
    /// The label of the segment that started last.
    label: Option<Label>,
    /// The last root.
    root: Option<Root>,
    /// Digests of the pages of this segment.
    pages: HashSet<String>,
    /// Members since the last page. About a hundred bytes each, plus the name.
    came: HashMap<EntryPath, Option<[Digest; 2]>>,
    /// Contradictions found.
    flaws: Vec<Mismatch>,
    /// Members that came although they were not captured.
    lost: Vec<EntryPath>,
    /// Parts that the backup itself does not hold as they were.
    pub(crate) lacking: MissingParts,
}

/// A contradiction between a stream and its description.
#[derive(Debug)]
pub(crate) struct Mismatch {
    /// The error to report.
    pub(crate) error: Error,
    /// The affected entry.
    pub(crate) path: Option<EntryPath>,
    /// Whether the entry came at all.
    pub(crate) came: bool,
}

impl Mismatch {
    fn new(error: Error) -> Self {
        Self {
            error,
            path: None,
            came: false,
        }
    }
}

impl SelfCheck {
    /// Compares the entries of `selection`.
    pub(crate) fn of(selection: Selection) -> Self {
        Self {
            selection: Some(selection),
            ..Self::default()
        }
    }

    /// Returns whether members must be kept for a comparison.
    pub(crate) fn is_comparing(&self) -> bool {
        self.selection.is_some() && (self.label.is_some() || self.came.len() < MAX_UNLABELED)
    }

    /// Returns whether the stream has a description.
    pub(crate) fn has_description(&self) -> bool {
        self.label.is_some()
    }

    /// Returns whether the stream may contain pieces of files. A backup without a base never does.
    pub(crate) fn may_have_pieces(&self) -> bool {
        self.label.as_ref().is_none_or(|label| label.is_incremental)
    }

    /// Returns the root; call it after the end of the stream.
    pub(crate) fn root(&self) -> Option<&Root> {
        self.root.as_ref()
    }

    /// Returns the records since the last call, if there is no comparison.
    pub(crate) fn records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// Returns the contradictions found since the last call.
    pub(crate) fn take_mismatches(&mut self) -> Vec<Mismatch> {
        std::mem::take(&mut self.flaws)
    }

    /// Returns the members since the last call that must be removed: zeros in place of a large file
    /// that could not be read.
    pub(crate) fn take_lost(&mut self) -> Vec<EntryPath> {
        std::mem::take(&mut self.lost)
    }

    /// Records a member and the digests of its content.
    pub(crate) fn came(&mut self, path: &EntryPath, content: Option<[Digest; 2]>) {
        if !self.is_comparing() {
            return;
        }
        self.came.insert(path.clone(), content);
        if self.came.len() > MAX_UNPAGED {
            let error = Error::corrupt("the description of the stream is incomplete")
                .because("a page is missing");
            self.flaws.push(Mismatch::new(error));
            (self.label, self.came) = (None, HashMap::new());
        }
    }

    /// Handles a service frame.
    pub(crate) fn add_service(&mut self, frame: &[u8]) {
        let heard = match Service::payload(frame) {
            Some((Service::Label, payload)) => {
                Label::parse(payload).map(|label| self.begin_segment(label))
            }
            _ if !self.has_description() => return,
            Some((Service::Page, payload)) => ManifestPage::decode(payload).map(|page| {
                self.pages.insert(hex(blake3::hash(payload).as_bytes()));
                self.check_page(page);
            }),
            // It describes an earlier volume, which is no part of this stream.
            Some((Service::Catalog, payload)) => {
                self.pages.insert(hex(blake3::hash(payload).as_bytes()));
                return;
            }
            Some((Service::Root, payload)) => {
                Root::open(payload, "the root in the stream").map(|root| self.root = Some(root))
            }
            Some((Service::Locator | Service::WalIndex, _)) | None => return,
        };
        if let Err(error) = heard {
            self.flaws.push(Mismatch::new(error));
        }
    }

    /// Starts a segment. Streams may follow one another, but no segment may be missing between two.
    /// A stream of a newer format is read as a plain tar.
    fn begin_segment(&mut self, label: Label) {
        if let Some(before) = self
            .label
            .as_ref()
            .filter(|before| !before.repository.is_empty() && !follows(before, &label))
        {
            let message = format!("{} follows {}", segment_text(&label), segment_text(before));
            self.flaws.push(Mismatch::new(
                Error::corrupt(message).because("segments are missing or out of order".to_owned()),
            ));
        }
        self.end();
        self.root = None;
        self.label = Some(label).filter(|label| label.format <= FORMAT);
    }

    /// Ends a stream: an archive must have a root, and all pages listed in the root.
    pub(crate) fn end(&mut self) {
        let pages = std::mem::take(&mut self.pages);
        let label = self.label.take();
        // The root of a repository's backup is not in its segments.
        if label.is_none_or(|label| !label.repository.is_empty()) {
            return;
        }
        let Some(root) = &self.root else {
            let error = Error::corrupt("the stream has no root")
                .because("the end of the stream is missing");
            self.flaws.push(Mismatch::new(error));
            return;
        };
        let absent = root
            .pages
            .iter()
            .filter(|page| !pages.contains(&page.digest));
        self.flaws.extend(absent.map(|page| {
            let entries = counted(page.entries, "entry");
            let first = quoted(&page.first.0);
            let error = Error::corrupt("a manifest page that the root lists is not in the stream")
                .because(format!("it describes {entries} starting at {first}"));
            Mismatch::new(error)
        }));
    }

    fn check_page(&mut self, page: ManifestPage) {
        let Some(selection) = self.selection.take() else {
            self.records.extend(
                page.records
                    .into_iter()
                    .filter(|record| !record.more)
                    .map(without_places),
            );
            return;
        };
        let wanted = |record: &&Record| !record.more && selection.holds(&record.entry.path);
        page.records
            .iter()
            .filter(wanted)
            .for_each(|record| self.check_record(record));
        self.selection = Some(selection);
    }

    fn check_record(&mut self, record: &Record) {
        self.lacking.note(record);
        let path = &record.entry.path;
        let came = self.came.remove(path);
        let why = match (came, record.state.is_stored()) {
            (Some(Some([found, other])), true) => match record.digest {
                Some(wanted) if wanted != found && wanted != other => {
                    let found = if matches!(wanted, Digest::Blake3(_)) {
                        found
                    } else {
                        other
                    };
                    format!("its digest is {found}, the manifest says {wanted}")
                }
                _ => return,
            },
            (Some(_), false) if record.entry.kind != EntryKind::Directory => {
                return self.lost.push(path.clone());
            }
            (None, true) if self.is_whole() => "it is missing in the stream".to_owned(),
            _ => return,
        };
        let error = Error::corrupt(format!("{} is damaged", quoted(path))).because(why);
        self.flaws.push(Mismatch {
            error,
            path: Some(path.clone()),
            came: came.is_some(),
        });
    }

    /// Returns whether the stream has all entries of its pages. A segment of a repository may refer
    /// to others.
    fn is_whole(&self) -> bool {
        self.label
            .as_ref()
            .is_some_and(|label| label.repository.is_empty())
    }
}

/// Returns a record without the places of its content.
fn without_places(record: Record) -> Record {
    Record {
        entry: record.entry,
        state: record.state,
        digest: record.digest,
        ..Record::default()
    }
}

fn segment_text(label: &Label) -> String {
    format!(
        "segment {} of stream {} of backup {:?}",
        label.number, label.stream, label.backup
    )
}
/// Returns whether `label` is the segment after `before`, or the first of another stream or backup.
fn follows(before: &Label, label: &Label) -> bool {
    let next = (before.backup == label.backup && before.stream == label.stream)
        .then_some(before.number.saturating_add(1));
    label.number == next.unwrap_or(1)
}
