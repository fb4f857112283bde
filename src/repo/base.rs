//! The backups that a new one is compared with.
//!
//! The base is the latest complete backup of the same source; beside it stands what is durable of one that came after it and
//! was cut off. What they refer to must be there: segments that are missing, or about to be pruned, count as if they held
//! nothing; what is missing though nobody prunes it is noted. Some of the segments of which little is live are not referred to any more, so that they can go.

use super::{
    compare::{BaseCursor, Compare, CompareRules, ComparedEntries},
    fragmentation,
    open::{LATEST, backup_ids, ids_of, list_backups, pick},
    protocol::is_dead,
    renames::Moved,
    roots::{BackupFiles, BackupState, backup_files},
    select::BackupFilter,
};
use crate::{
    archive::{Archive, object::ObjectName},
    error::{Error, ErrorKind, Result},
    format::{
        digest::Algorithm,
        entry::{ByteRun, EntryKind},
        layout::{MANIFEST, segment},
        page::{Extent, PageItem, SegmentId, describe_whole_file},
        root::{BackupOptions, ClusterInfo, Live, Root, SourceInfo},
        segment::SERVICE_HEADER_BYTES,
        sizes,
    },
    frame::Scanned,
    known::{BaseEntry, Trust},
    platform,
    queue::Locked,
    sink::Referred,
    source::Stream,
    storage::Objects,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
};

/// Which base is wanted, and what is trusted.
#[derive(Debug, Clone, Default)]
pub struct WantedBase {
    /// An id or its beginning; else the latest.
    pub base: Option<String>,
    /// None at all.
    pub full: bool,
    /// What is taken as proof that a file has not changed.
    pub compare: Compare,
}

/// What the new backup is of, and how it is stored.
#[derive(Debug)]
pub struct Like<'a> {
    /// Host and paths.
    pub origin: &'a SourceInfo,
    /// The cluster that the files are of, if they are of one.
    pub cluster: Option<&'a ClusterInfo>,
    /// Codec, digest and block size must be the same, or nothing can be referred to.
    pub options: &'a BackupOptions,
    /// The options by which something is left out.
    pub left_out: &'a [String],
}

/// A backup of the same source that cannot be a base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    /// Its id.
    pub backup: String,
    /// What is different.
    pub why: &'static str,
}

/// The backups that the next one of their source is compared with, and their segments that it may refer to.
pub struct Base {
    archives: Vec<(Arc<Archive>, bool)>,
    pub(super) rules: CompareRules,
    sizes: HashMap<SegmentId, Size>,
    /// Segments that must not be referred to.
    lost: HashSet<SegmentId>,
    /// Segments that should not be.
    worn: HashSet<SegmentId>,
    frame_bytes: u64,
    block_bytes: u64,
    moved: Mutex<Moved>,
    damage: Arc<Mutex<BTreeSet<String>>>,
}

impl Base {
    /// Find the base of a new backup in a repository, and say what was found to be damaged or missing, though nobody prunes
    /// it; nothing of that is referred to. `refer` announces the backups that are referred to and
    /// says which of them, and of their objects, cannot be.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] or [`ErrorKind::NotFound`] if a base was asked for that cannot be one; else those of `refer`.
    pub fn find(
        objects: &Arc<dyn Objects>,
        wanted: &WantedBase,
        like: &Like<'_>,
        mut refer: impl FnMut(&[String]) -> Result<Referred>,
    ) -> Result<(Option<Self>, BTreeSet<String>)> {
        let (mut gone, mut damage) = (HashSet::new(), BTreeSet::new());
        loop {
            let files = match wanted.full {
                true => BTreeMap::new(),
                false => backup_files(&**objects)?,
            };
            let archives = match wanted.full {
                true => Vec::new(),
                false => candidates(objects, &files, wanted, like, &gone, &mut damage)?,
            };
            let ids: Vec<String> = archives
                .iter()
                .map(|archive| archive.root.id.clone())
                .collect();
            let referred = refer(&ids)?;
            if referred.gone.is_empty() {
                // A directory is asked for each object. A store answers for all of them at once.
                let files = objects.as_local().is_none().then_some(&files);
                let base = (!archives.is_empty())
                    .then(|| Self::new(archives, files, wanted, like, referred, &mut damage));
                return Ok((base, damage));
            }
            gone.extend(referred.gone);
        }
    }

    /// The latest backup of the same source, and why it is no base; none if there is none.
    pub fn unlike(objects: &Arc<dyn Objects>, like: &Like<'_>) -> Option<Unlike> {
        let why = |backup: &String| match differs(
            &Archive::open_backup(objects, backup).ok()?.root,
            like,
        )? {
            OTHER_SOURCE => None,
            why => Some(Unlike {
                backup: backup.clone(),
                why,
            }),
        };
        backup_ids(&**objects).ok()?.iter().rev().find_map(why)
    }

    fn new(
        archives: Vec<Archive>,
        files: Option<&BTreeMap<String, BackupFiles>>,
        wanted: &WantedBase,
        like: &Like<'_>,
        referred: Referred,
        damage: &mut BTreeSet<String>,
    ) -> Self {
        let digests = like.options.digest == Algorithm::Blake3;
        let rules = CompareRules {
            compare: wanted.compare,
            digests,
            unfinished: digests && like.cluster.is_none(),
        };
        let (mut sizes, mut counts, mut lost) =
            (HashMap::new(), HashMap::new(), referred.tombstones);
        for archive in &archives {
            let mut manifests = HashMap::new();
            for (id, live, Size { bytes, data }) in segments(&archive.root) {
                let segment = missing(archive, files, ObjectName::Segment(id.clone()), bytes);
                // What is referred to keeps its manifest, and a commit asks for it.
                let manifest =
                    || missing(archive, files, ObjectName::Manifest(id.backup.clone()), 0);
                let manifest = manifests
                    .entry(id.backup.clone())
                    .or_insert_with(manifest)
                    .clone();
                if segment.is_none() && manifest.is_none() {
                    counts.insert(id.clone(), (live, data));
                } else if lost.insert(id.clone()) && !referred.manifests.contains(&id.backup) {
                    damage.extend(segment.into_iter().chain(manifest));
                }
                sizes.insert(id, Size { bytes, data });
            }
        }
        let refers_to_pages = referred.manifests.is_empty();
        let found: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let archives = archives.into_iter().map(|archive| {
            let (trusted, found) = (is_trusted(&archive.root, like), found.clone());
            let warn = move |damage: Error| _ = found.locked().insert(damage.line());
            (
                Arc::new(archive.as_base(refers_to_pages).warn_with(warn)),
                trusted,
            )
        });
        Self {
            archives: archives.collect(),
            rules,
            sizes,
            lost,
            worn: fragmentation::chosen(counts),
            frame_bytes: like.options.frame_bytes,
            block_bytes: like.options.block_bytes,
            moved: Mutex::default(),
            damage: found,
        }
    }

    /// The pages of which a copy, or none, could be read so far.
    pub fn damage(&self) -> BTreeSet<String> {
        self.damage.locked().clone()
    }

    pub(super) fn note(&self, error: &Error) {
        self.damage.locked().insert(error.line());
    }

    /// The ids of the backups.
    pub fn ids(&self) -> Vec<String> {
        self.archives
            .iter()
            .map(|(archive, _)| archive.root.id.clone())
            .collect()
    }

    /// The one cluster that all that is known is of.
    pub fn cluster(&self) -> Option<&ClusterInfo> {
        match &self.archives[..] {
            [(archive, _)] => archive.root.postgres.as_ref(),
            _ => None,
        }
    }

    /// A scan, with what is known of each object.
    pub fn compare(self: &Arc<Self>, scan: Stream<Scanned>) -> Stream<Scanned> {
        let cursors = self
            .archives
            .iter()
            .map(|(archive, trusted)| BaseCursor::new(self, archive, *trusted))
            .collect();
        Box::new(ComparedEntries {
            base: self.clone(),
            scan,
            cursors,
        })
    }

    /// Say how large the segments are that are referred to. Frames that were met out of order may have been counted twice.
    pub fn measure(&self, live: &mut [Live]) {
        for live in live {
            let Size { bytes, data } = self.sizes.get(&live.id()).copied().unwrap_or_default();
            (live.of_bytes, live.data_bytes) = (bytes, data);
            live.bytes = live.bytes.min(live.of_bytes);
        }
    }

    /// What of a record may be referred to; `None`: nothing. What is in worn segments is stored again, of a large file only that.
    pub(super) fn usable(&self, known: BaseEntry) -> Option<BaseEntry> {
        if self.lost.is_empty() && self.worn.is_empty() {
            return Some(known);
        }
        let extents = || {
            known
                .parts
                .iter()
                .flat_map(|item| item.extents.iter().map(move |extent| (item, extent)))
        };
        let is_in = |set: &HashSet<SegmentId>, (item, extent): (&PageItem, &Extent)| {
            set.contains(item.segment(&extent.frame))
        };
        if extents().any(|at| is_in(&self.lost, at)) {
            return None;
        }
        let places = extents().scan(0, |at, (item, extent)| {
            let offset = std::mem::replace(at, *at + u64::from(extent.len));
            Some((
                is_in(&self.worn, (item, extent)),
                ByteRun {
                    offset,
                    len: extent.len.into(),
                },
            ))
        });
        let places: Vec<ByteRun> = places
            .filter_map(|(worn, run)| worn.then_some(run))
            .collect();
        let entry = &known.parts[0].entry;
        let (len, again) = (
            entry.data_len(),
            sizes::sum(places.iter().map(|run| run.len)),
        );
        let by_blocks = self.rules.digests
            && known.has_blocks()
            && !known.has_chunks()
            && matches!(entry.kind, EntryKind::File { map: None, .. });
        match () {
            () if again == 0 => Some(known),
            () if len > self.frame_bytes && by_blocks => {
                Some(known.store_again(fragmentation::blocks(places, self.block_bytes, len)))
            }
            () if len > self.frame_bytes
                && self.rules.digests
                && (known.has_blocks() || known.has_chunks()) =>
            {
                Some(known.store_found_again(places))
            }
            // One that can be stored only as a whole is, if that is worth it.
            () => (len > self.frame_bytes && again < len / 4).then_some(known),
        }
    }

    /// A file at a path that no base has, or that another had: one that had another?
    pub(super) fn moved(
        &self,
        scanned: &Scanned,
        cursors: &[BaseCursor],
    ) -> Option<(Vec<PageItem>, Trust)> {
        let (archive, begun) = cursors.first().map(BaseCursor::place)?;
        let parts = self.moved.locked().find(archive, &scanned.entry)?;
        let trust = self.rules.trust_moved(scanned, parts.first()?, begun)?;
        describe_whole_file(&parts).then_some((parts, trust))
    }
}

/// Is what a base says of a file's times and inode worth anything now (rule 22)?
fn is_trusted(base: &Root, like: &Like<'_>) -> bool {
    let begun = base.time.parse::<jiff::Timestamp>();
    let past = begun.is_ok_and(|begun| begun <= jiff::Timestamp::now());
    let alike = match (&base.postgres, like.cluster) {
        (Some(then), Some(now)) => {
            then.timeline == now.timeline
                && then.online == now.online
                && then.checksums == now.checksums
        }
        (then, now) => then.is_none() && now.is_none(),
    };
    past && alike
}

/// Bytes of a segment, and those that are live as long as all that is in it is kept. Copies of pages and headers of what has no
/// content are no reason to store a segment again: they would be there again.
#[derive(Debug, Clone, Copy, Default)]
struct Size {
    bytes: u64,
    data: u64,
}

/// Every segment that a backup refers to, how many of its bytes are live, and how many it has.
fn segments(root: &Root) -> Vec<(SegmentId, u64, Size)> {
    let named = |id: SegmentId| SegmentId {
        backup: if id.backup.is_empty() {
            root.id.clone()
        } else {
            id.backup
        },
        ..id
    };
    let mut copies: HashMap<(u32, u32), u64> = HashMap::new();
    for page in root.pages.iter().filter(|page| page.backup.is_empty()) {
        let copies = copies.entry((page.stream, page.segment)).or_default();
        sizes::add(
            copies,
            page.bytes.saturating_add(SERVICE_HEADER_BYTES as u64),
        );
    }
    let size = |live: &Live| {
        let at = (live.stream, live.number);
        match root
            .segments
            .iter()
            .find(|own| live.backup.is_empty() && (own.stream, own.number) == at)
        {
            // A root that was rebuilt does not say what of it can be kept.
            Some(own) if live.data_bytes == 0 => {
                let copies = copies.get(&at).copied().unwrap_or(0);
                Size {
                    bytes: own.bytes,
                    data: own.bytes.saturating_sub(copies),
                }
            }
            Some(own) => Size {
                bytes: own.bytes,
                data: live.data_bytes,
            },
            None => Size {
                bytes: live.of_bytes,
                data: if live.data_bytes > 0 {
                    live.data_bytes
                } else {
                    live.of_bytes
                },
            },
        }
    };
    // Frames are counted without what is between them.
    root.liveness
        .iter()
        .map(|live| (named(live.id()), live.bytes, size(live)))
        .collect()
}

/// What there is to say of an object that is not there, or not so many bytes of it.
fn missing(
    archive: &Archive,
    files: Option<&BTreeMap<String, BackupFiles>>,
    object: ObjectName,
    bytes: u64,
) -> Option<String> {
    let name = || archive.store().name(&object);
    if let Some(files) = files
        && listed_bytes(archive, files, &object).is_some_and(|listed| listed >= bytes)
    {
        return None;
    }
    match archive.store().len(&object) {
        Ok(len) if len >= bytes => None,
        Ok(len) => Some(format!("{} has {len} bytes and had {bytes}", name())),
        Err(error) if error.kind == ErrorKind::NotFound => Some(format!("{} is missing", name())),
        Err(error) => Some(error.line()),
    }
}

/// Bytes of an object of a named backup, as a listing has it.
fn listed_bytes(
    archive: &Archive,
    files: &BTreeMap<String, BackupFiles>,
    object: &ObjectName,
) -> Option<u64> {
    match object {
        ObjectName::Root => None,
        ObjectName::Manifest(backup) => files.get(backup)?.bytes(MANIFEST),
        ObjectName::Segment(id) => {
            let name = segment(id.stream, id.number, archive.codec.suffix());
            files.get(&id.backup)?.bytes(&name)
        }
    }
}

/// The latest complete backup that is like this one, and what is there of a dead one that is later.
fn candidates(
    objects: &Arc<dyn Objects>,
    files: &BTreeMap<String, BackupFiles>,
    wanted: &WantedBase,
    like: &Like<'_>,
    gone: &HashSet<String>,
    damage: &mut BTreeSet<String>,
) -> Result<Vec<Archive>> {
    if let Some(base) = &wanted.base {
        return asked_for(objects, base, like).map(|archive| vec![archive]);
    }
    let mut found = Vec::new();
    let complete = ids_of(files, BackupState::Listed);
    let mut partial = ids_of(files, BackupState::Partial);
    partial.retain(|id| is_dead(&**objects, id));
    platform::debug(|| {
        format!(
            "{} backups were cut off and can be gone on from",
            partial.len()
        )
    });
    let there = complete.iter().rev().filter(|id| !gone.contains(*id));
    let mut alike = there.filter_map(|id| match Archive::open_backup(objects, id) {
        Ok(archive) => Some(archive).filter(|archive| differs(&archive.root, like).is_none()),
        Err(error) => {
            damage.extend((error.kind == ErrorKind::Corrupt).then(|| error.line()));
            None
        }
    });
    // One of some names has little of what another one wants.
    let is_part = |left_out: &[String]| {
        left_out
            .iter()
            .any(|option| option.starts_with("--files-from"))
    };
    let suits = |archive: &Archive| is_part(like.left_out) || !is_part(&archive.root.left_out);
    let latest = match alike.next() {
        Some(latest) if !suits(&latest) => alike.find(suits).or(Some(latest)),
        latest => latest,
    };
    let after = |id: &String| latest.as_ref().is_none_or(|latest| *id > latest.root.id);
    let is_good =
        |archive: &Archive| differs(&archive.root, like).is_none() && has_manifests(archive);
    let cut_off = partial
        .iter()
        .rev()
        .filter(|id| after(id) && !gone.contains(*id));
    let cut_off = cut_off
        .filter_map(|id| Archive::open_partial(objects, id).ok())
        .find(is_good);
    found.extend(cut_off);
    found.extend(latest);
    Ok(found)
}

/// Are all manifests there that it refers to? Not those of a copy that was cut off.
fn has_manifests(archive: &Archive) -> bool {
    let mut ids = archive.root.referenced_backups().into_iter().chain([""]);
    ids.all(|id| {
        archive
            .store()
            .len(&ObjectName::Manifest(id.to_owned()))
            .is_ok()
    })
}

fn asked_for(objects: &Arc<dyn Objects>, base: &str, like: &Like<'_>) -> Result<Archive> {
    let id = if base == LATEST {
        latest_alike(objects, like)?
    } else {
        pick(objects, Some(base), &BackupFilter::default())?
    };
    let archive = Archive::open_backup(objects, &id)?;
    match differs(&archive.root, like) {
        None => Ok(archive),
        Some(why) => Err(Error::new(
            ErrorKind::Usage,
            format!("cannot take backup {id:?} as the base"),
        )
        .because(why)),
    }
}

/// The id of the latest backup of the same source.
fn latest_alike(objects: &Arc<dyn Objects>, like: &Like<'_>) -> Result<String> {
    let is_alike = |root: &Root| differs(root, like) != Some(OTHER_SOURCE);
    let alike = list_backups(objects)?
        .filter_map(|(id, root)| root.is_ok_and(|root| is_alike(&root)).then_some(id));
    alike.last().ok_or_else(|| {
        let what = format!(
            "could not find a backup in {} that could be the base",
            objects.describe("")
        );
        Error::new(ErrorKind::NotFound, what).because("it has none of this source")
    })
}

const OTHER_SOURCE: &str = "it is of another source";

/// Why a backup cannot be the base of this one.
fn differs(base: &Root, like: &Like<'_>) -> Option<&'static str> {
    let (then, now) = (&base.options, like.options);
    let same_source = match (&base.postgres, like.cluster) {
        (Some(then), Some(now)) => then.system_identifier == now.system_identifier,
        (None, None) => base.source == *like.origin,
        _ => false,
    };
    match () {
        () if !same_source => Some(OTHER_SOURCE),
        () if then.codec != now.codec => Some("it is compressed by another codec"),
        () if then.digest != now.digest => Some("its files are digested in another way"),
        () if then.block_bytes != now.block_bytes => Some("its blocks have another size"),
        () => None,
    }
}
