//! What a stream of ours says of itself, compared with what came out of it.
//!
//! A page follows the entries that it describes, so of those since the last page the digests are kept, and nothing else. The
//! root comes last, and says which pages there are. In streams without service frames there is nothing to compare with.

use crate::archive::missing::MissingParts;
use crate::{
    archive::Selection,
    error::{Error, quoted},
    format::{
        digest::{Digest, hex},
        entry::{EntryKind, EntryPath},
        page::{ManifestPage, Record},
        root::{FORMAT, Root},
        segment::{Label, Service},
    },
    text::counted,
};
use std::collections::{HashMap, HashSet};

/// Members that may come before the label: with lz4 it stands behind the first frame.
pub(crate) const MAX_UNLABELED: usize = 1025;

/// Members that may come between two pages: several times those of the largest.
const MAX_UNPAGED: usize = 1 << 16;

/// Compares the members of a stream with the pages that follow them, as far as it has some.
#[derive(Debug, Default)]
pub(crate) struct SelfCheck {
    /// What is compared; if nothing is, records are kept.
    selection: Option<Selection>,
    /// Records that were kept, without what only a restore needs.
    records: Vec<Record>,
    /// Which segment the stream is, or the one of it that has begun last.
    label: Option<Label>,
    /// The last root that came.
    root: Option<Root>,
    /// Digests of the pages of this segment.
    pages: HashSet<String>,
    /// What came since the last page. A hundred bytes each, and its name.
    came: HashMap<EntryPath, Option<[Digest; 2]>>,
    /// What is wrong.
    flaws: Vec<Mismatch>,
    /// What came, though it was not captured.
    lost: Vec<EntryPath>,
    /// What the backup itself does not hold as it was.
    pub(crate) lacking: MissingParts,
}

/// What is wrong with a stream.
#[derive(Debug)]
pub(crate) struct Mismatch {
    /// How it shows.
    pub(crate) error: Error,
    /// The entry that is not what it was.
    pub(crate) path: Option<EntryPath>,
    /// Did it come at all?
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
    /// One that compares what `selection` wants.
    pub(crate) fn of(selection: Selection) -> Self {
        Self {
            selection: Some(selection),
            ..Self::default()
        }
    }

    /// May there be something to compare with?
    pub(crate) fn is_kept(&self) -> bool {
        self.selection.is_some() && (self.label.is_some() || self.came.len() < MAX_UNLABELED)
    }

    /// Does the stream say what is in it?
    pub(crate) fn speaks(&self) -> bool {
        self.label.is_some()
    }

    /// May there be pieces of files in it? Not if it is known to be complete by itself.
    pub(crate) fn may_have_pieces(&self) -> bool {
        self.label.as_ref().is_none_or(|label| label.is_incremental)
    }

    /// The root, once the stream is over.
    pub(crate) fn root(&self) -> Option<&Root> {
        self.root.as_ref()
    }

    /// The records that came since this was called, if nothing is compared.
    pub(crate) fn records(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.records)
    }

    /// What was found wrong since this was called.
    pub(crate) fn flaws(&mut self) -> Vec<Mismatch> {
        std::mem::take(&mut self.flaws)
    }

    /// Of what came since this was called, what stands for nothing: zeros in place of a large file that could not be read.
    pub(crate) fn lost(&mut self) -> Vec<EntryPath> {
        std::mem::take(&mut self.lost)
    }

    /// An entry came, with this content.
    pub(crate) fn came(&mut self, path: &EntryPath, content: Option<[Digest; 2]>) {
        if !self.is_kept() {
            return;
        }
        self.came.insert(path.clone(), content);
        if self.came.len() > MAX_UNPAGED {
            let error = Error::corrupt("the stream does not say what is in it")
                .because("a page is missing");
            self.flaws.push(Mismatch::new(error));
            (self.label, self.came) = (None, HashMap::new());
        }
    }

    /// A service frame came.
    pub(crate) fn hear(&mut self, frame: &[u8]) {
        let heard = match Service::payload(frame) {
            Some((Service::Label, payload)) => Label::parse(payload).map(|label| self.begin(label)),
            _ if !self.speaks() => return,
            Some((Service::Page, payload)) => ManifestPage::decode(payload).map(|page| {
                self.pages.insert(hex(blake3::hash(payload).as_bytes()));
                self.page(page);
            }),
            Some((Service::Root, payload)) => {
                Root::open(payload, "the root in the stream").map(|root| self.root = Some(root))
            }
            Some((Service::Locator, _)) | None => return,
        };
        if let Err(error) = heard {
            self.flaws.push(Mismatch::new(error));
        }
    }

    /// Streams may stand one behind the other; of segments none is missing between two. What a newer version wrote is a tar, and
    /// nothing else is known of it.
    fn begin(&mut self, label: Label) {
        if let Some(before) = self
            .label
            .as_ref()
            .filter(|before| !before.repository.is_empty() && !follows(before, &label))
        {
            let name = |label: &Label| {
                format!(
                    "segment {} of stream {} of backup {:?}",
                    label.number, label.stream, label.backup
                )
            };
            let what = format!("{} comes right behind {}", name(&label), name(before));
            self.flaws
                .push(Mismatch::new(Error::corrupt(what).because(
                    "segments are missing, or not in their order".to_owned(),
                )));
        }
        self.end();
        self.root = None;
        self.label = Some(label).filter(|label| label.format <= FORMAT);
    }

    /// The stream is over, or another one begins: an archive has a root, and the pages it speaks of.
    pub(crate) fn end(&mut self) {
        let (pages, label) = (std::mem::take(&mut self.pages), self.label.take());
        // That of a segment in a repository stands beside it.
        if label.is_none_or(|label| !label.repository.is_empty()) {
            return;
        }
        let Some(root) = &self.root else {
            let error =
                Error::corrupt("the stream has no root").because("something is missing at its end");
            self.flaws.push(Mismatch::new(error));
            return;
        };
        let absent = root
            .pages
            .iter()
            .filter(|page| !pages.contains(&page.digest));
        self.flaws.extend(absent.map(|page| {
            let (entries, first) = (counted(page.entries, "entry"), quoted(&page.first.0));
            let error = Error::corrupt("a manifest page is not in the stream as its root says")
                .because(format!("it describes {entries} from {first} on"));
            Mismatch::new(error)
        }));
    }

    fn page(&mut self, page: ManifestPage) {
        let Some(selection) = self.selection.take() else {
            let of = |record: Record| Record {
                entry: record.entry,
                state: record.state,
                digest: record.digest,
                ..Record::default()
            };
            self.records.extend(
                page.records
                    .into_iter()
                    .filter(|record| !record.more)
                    .map(of),
            );
            return;
        };
        let wanted = |record: &&Record| !record.more && selection.holds(&record.entry.path);
        page.records
            .iter()
            .filter(wanted)
            .for_each(|record| self.record(record));
        self.selection = Some(selection);
    }

    fn record(&mut self, record: &Record) {
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

    /// Does the stream have all entries that its pages describe? A segment of a repository may share some with others.
    fn is_whole(&self) -> bool {
        self.label
            .as_ref()
            .is_some_and(|label| label.repository.is_empty())
    }
}
/// Is it the segment behind the other one, or the first of the next stream, or of another backup's?
fn follows(before: &Label, label: &Label) -> bool {
    let next = (before.backup == label.backup && before.stream == label.stream)
        .then_some(before.number.saturating_add(1));
    label.number == next.unwrap_or(1)
}
