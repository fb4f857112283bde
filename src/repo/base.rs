//! The earlier backups that a new one is compared with.
//!
//! The base is the latest complete backup of the same source. If a later backup of the source was
//! interrupted, its durable part is a second base. A new backup refers to a segment only if the
//! segment exists and is not about to be pruned; a missing segment that no prune is deleting is
//! reported as damage. Segments with few live bytes are not referred to any more, so that a prune
//! can delete them.

use super::{
    compare::{BaseCursor, Compare, CompareRules, ComparedEntries},
    fragmentation,
    open::{backup_ids, ids_of, list_backups, pick},
    protocol::is_dead,
    renames::RenameIndex,
    roots::{BackupFiles, BackupState, backup_files, key},
    select::BackupFilter,
    selector::LATEST,
};
use crate::{
    archive::{Archive, object::ObjectName},
    error::{Error, ErrorKind, Result},
    format::{
        digest::Algorithm,
        entry::{ByteRun, EntryKind},
        layout::{MANIFEST, segment},
        page::{PageItem, SegmentId, describe_whole_file},
        root::{BackupOptions, ClusterInfo, Live, Root, SourceInfo},
        root_parts::PSEUDONYM,
        segment::SERVICE_HEADER_BYTES,
        sizes,
    },
    frame::Scanned,
    known::{BaseEntry, Trust},
    platform,
    queue::{Locked, run_both},
    sink::Referred,
    source::Stream,
    storage::Objects,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex},
};

/// Which base the user wants, and how the comparison detects changes.
#[derive(Debug, Clone, Default)]
pub struct WantedBase {
    /// An id or its beginning; the latest backup if absent.
    pub base: Option<String>,
    /// Whether to use no base at all.
    pub full: bool,
    /// The proof that a file has not changed.
    pub compare: Compare,
}

/// The source of the new backup, and how the backup is stored.
#[derive(Debug)]
pub struct NewBackup<'a> {
    /// Host and paths.
    pub origin: &'a SourceInfo,
    /// The cluster that the files belong to, if any.
    pub cluster: Option<&'a ClusterInfo>,
    /// Codec, digest and block size must be the same, or no content can be referred to.
    pub options: &'a BackupOptions,
    /// The options that exclude files.
    pub left_out: &'a [String],
}

/// A backup of the same source that cannot be a base.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlike {
    /// Its id.
    pub backup: String,
    /// The difference.
    pub why: &'static str,
}

/// The backups that the next one of their source is compared with, and their segments that it may
/// refer to.
pub struct Base {
    archives: Vec<(Arc<Archive>, bool)>,
    pub(super) rules: CompareRules,
    sizes: HashMap<SegmentId, SegmentSize>,
    /// Segments that must not be referred to.
    lost: HashSet<SegmentId>,
    /// Fragmented segments, which should not be referred to.
    worn: HashSet<SegmentId>,
    frame_bytes: u64,
    block_bytes: u64,
    moved: Mutex<RenameIndex>,
    damage: Arc<Mutex<BTreeSet<String>>>,
}

impl Base {
    /// Finds the base of a new backup in a repository.
    ///
    /// Reports objects that are damaged, or missing although no prune deletes them, and refers to
    /// none of them. `chosen` is the first choice. `refer` announces the backups that are referred
    /// to, and returns those backups and objects that cannot be used.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] or [`ErrorKind::NotFound`] if the requested base cannot be one; else
    /// the errors of `refer`.
    pub fn find(
        objects: &Arc<dyn Objects>,
        wanted: &WantedBase,
        like: &NewBackup<'_>,
        mut chosen: ChosenBases,
        mut refer: impl FnMut(&[String]) -> Result<Referred>,
    ) -> Result<(Option<Self>, BTreeSet<String>)> {
        loop {
            let archives = &chosen.archives;
            let ids: Vec<String> = archives
                .iter()
                .map(|archive| archive.root.id.clone())
                .collect();
            let is_far = objects.as_local().is_none();
            let read_first = || {
                if is_far {
                    archives.iter().for_each(Archive::read_ahead);
                }
            };
            let ((), referred) = run_both(is_far, read_first, || refer(&ids));
            let referred = referred?;
            if referred.gone.is_empty() {
                let ChosenBases {
                    archives,
                    mut damage,
                    ..
                } = chosen;
                let base = (!archives.is_empty())
                    .then(|| Self::new(archives, wanted, like, referred, &mut damage));
                return Ok((base, damage));
            }
            chosen.gone.extend(referred.gone);
            let files = backup_files(&**objects)?;
            chosen.choose(objects, &files, wanted, like)?;
        }
    }

    /// Returns the latest backup of the same source that cannot be a base, with the reason.
    pub fn unlike(objects: &Arc<dyn Objects>, like: &NewBackup<'_>) -> Option<Unlike> {
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
        wanted: &WantedBase,
        like: &NewBackup<'_>,
        referred: Referred,
        damage: &mut BTreeSet<String>,
    ) -> Self {
        let digests = like.options.digest == Algorithm::Blake3;
        let rules = CompareRules {
            compare: wanted.compare,
            digests,
            unfinished: digests && like.cluster.is_none(),
        };
        let mut segments = BaseSegments {
            lost: referred.tombstones,
            ..BaseSegments::default()
        };
        for archive in &archives {
            // A directory is asked for each object. A store answers for all of them at once.
            segments.add(
                archive,
                referred.sizes.as_ref(),
                &referred.manifests,
                damage,
            );
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
            sizes: segments.sizes,
            lost: segments.lost,
            worn: fragmentation::chosen(segments.live),
            frame_bytes: like.options.frame_bytes,
            block_bytes: like.options.block_bytes,
            moved: Mutex::default(),
            damage: found,
        }
    }

    /// The pages of which some or all copies could not be read so far.
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

    /// Returns the latest backup of the source.
    pub fn latest_archive(&self) -> Option<Arc<Archive>> {
        self.archives.first().map(|(archive, _)| archive.clone())
    }

    /// Returns the cluster of the base, if there is only one base.
    pub fn cluster(&self) -> Option<&ClusterInfo> {
        match &self.archives[..] {
            [(archive, _)] => archive.root.postgres.as_ref(),
            _ => None,
        }
    }

    /// Adds to each object of a scan its record in the base.
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

    /// Fills in the sizes of the segments that are referred to. Frames that were found out of order
    /// may be counted twice.
    pub fn measure(&self, live: &mut [Live]) {
        for live in live {
            let SegmentSize { bytes, data } =
                self.sizes.get(&live.id()).copied().unwrap_or_default();
            (live.of_bytes, live.data_bytes) = (bytes, data);
            live.bytes = live.bytes.min(live.of_bytes);
        }
    }

    /// Returns the part of a record that may be referred to; `None` if no part may be. Content in
    /// fragmented segments is stored again; of a large file, only that part.
    pub(super) fn usable(&self, known: BaseEntry) -> Option<BaseEntry> {
        if self.lost.is_empty() && self.worn.is_empty() {
            return Some(known);
        }
        if runs_in(&known, &self.lost).next().is_some() {
            return None;
        }
        let fragmented: Vec<ByteRun> = runs_in(&known, &self.worn).collect();
        let again = sizes::sum(fragmented.iter().map(|run| run.len));
        if again == 0 {
            return Some(known);
        }
        let entry = &known.parts[0].entry;
        let len = entry.data_len();
        if len <= self.frame_bytes {
            return None;
        }
        let digests = self.rules.digests;
        let is_dense = matches!(entry.kind, EntryKind::File { map: None, .. });
        if digests && known.has_blocks() && !known.has_chunks() && is_dense {
            let blocks = fragmentation::blocks(fragmented, self.block_bytes, len);
            Some(known.store_again(blocks))
        } else if digests && (known.has_blocks() || known.has_chunks()) {
            Some(known.store_found_again(fragmented))
        } else {
            // A file that can be stored only as a whole is, if that is worth it.
            (again < len / 4).then_some(known)
        }
    }

    /// Returns whether the file with this inode had another path, for a path that is not in the
    /// base or belonged to another file.
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

/// Returns the runs of a file's data that are in these segments.
fn runs_in<'a>(
    known: &'a BaseEntry,
    segments: &'a HashSet<SegmentId>,
) -> impl Iterator<Item = ByteRun> + 'a {
    let extents = known
        .parts
        .iter()
        .flat_map(|item| item.extents.iter().map(move |extent| (item, extent)));
    let mut at = 0;
    extents.filter_map(move |(item, extent)| {
        let offset = at;
        let len = u64::from(extent.len);
        at += len;
        segments
            .contains(item.segment(&extent.frame))
            .then_some(ByteRun { offset, len })
    })
}

/// The segments that the bases refer to.
#[derive(Default)]
struct BaseSegments {
    sizes: HashMap<SegmentId, SegmentSize>,
    /// Live bytes, and all bytes of data, of the segments that can be referred to.
    live: HashMap<SegmentId, (u64, u64)>,
    /// Segments that must not be referred to.
    lost: HashSet<SegmentId>,
}

impl BaseSegments {
    /// Adds the segments of one base. Missing objects are damage, unless their manifest is one of
    /// the `deleted` ones.
    fn add(
        &mut self,
        archive: &Archive,
        sizes: Option<&BTreeMap<String, u64>>,
        deleted: &HashSet<String>,
        damage: &mut BTreeSet<String>,
    ) {
        let mut manifests = HashMap::new();
        for (id, live, SegmentSize { bytes, data }) in segments(&archive.root) {
            let segment = missing(archive, sizes, ObjectName::Segment(id.clone()), bytes);
            // A backup that is referred to must keep its manifest: the commit checks that.
            let manifest = manifests
                .entry(id.backup.clone())
                .or_insert_with_key(|id| {
                    missing(archive, sizes, ObjectName::Manifest(id.clone()), 0)
                })
                .clone();
            if segment.is_none() && manifest.is_none() {
                self.live.insert(id.clone(), (live, data));
            } else if self.lost.insert(id.clone()) && !deleted.contains(&id.backup) {
                damage.extend(segment.into_iter().chain(manifest));
            }
            self.sizes.insert(id, SegmentSize { bytes, data });
        }
    }
}

/// Returns whether the times and inodes in a base can be trusted now (rule 22).
fn is_trusted(base: &Root, like: &NewBackup<'_>) -> bool {
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

/// Bytes of a segment, and the live ones as long as the whole backup is kept. Copies of pages and
/// headers of entries without content are no reason to store a segment again: the new segment would
/// contain them again.
#[derive(Debug, Clone, Copy, Default)]
struct SegmentSize {
    bytes: u64,
    data: u64,
}

/// Returns each segment that a backup refers to, with its live bytes and its size.
fn segments(root: &Root) -> Vec<(SegmentId, u64, SegmentSize)> {
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
            // A rebuilt root does not say how many bytes are live.
            Some(own) if live.data_bytes == 0 => {
                let copies = copies.get(&at).copied().unwrap_or(0);
                SegmentSize {
                    bytes: own.bytes,
                    data: own.bytes.saturating_sub(copies),
                }
            }
            Some(own) => SegmentSize {
                bytes: own.bytes,
                data: live.data_bytes,
            },
            None => SegmentSize {
                bytes: live.of_bytes,
                data: if live.data_bytes > 0 {
                    live.data_bytes
                } else {
                    live.of_bytes
                },
            },
        }
    };
    // Frames are counted without the bytes between them.
    root.liveness
        .iter()
        .map(|live| (named(live.id()), live.bytes, size(live)))
        .collect()
}

/// Returns the complaint about an object that is missing or too short. Objects that a listing
/// has, with these `sizes`, are not looked at.
fn missing(
    archive: &Archive,
    sizes: Option<&BTreeMap<String, u64>>,
    object: ObjectName,
    bytes: u64,
) -> Option<String> {
    let name = || archive.store().name(&object);
    if let Some(sizes) = sizes
        && listed_bytes(archive, sizes, &object).is_some_and(|listed| listed >= bytes)
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

/// Returns the bytes of an object of a named backup, from those of a listing.
fn listed_bytes(
    archive: &Archive,
    sizes: &BTreeMap<String, u64>,
    object: &ObjectName,
) -> Option<u64> {
    let key = match object {
        ObjectName::Root => return None,
        ObjectName::Manifest(backup) => key(backup, MANIFEST),
        ObjectName::Segment(id) => {
            let name = segment(id.stream, id.number, archive.codec.suffix());
            key(&id.backup, &name)
        }
    };
    sizes.get(&key).copied()
}

/// The backups that a new one could be compared with.
#[derive(Default)]
pub struct ChosenBases {
    archives: Vec<Archive>,
    /// Backups that are not there any more.
    gone: HashSet<String>,
    damage: BTreeSet<String>,
}

impl ChosenBases {
    /// Chooses among the backups of a listing.
    ///
    /// # Errors
    /// [`ErrorKind::Usage`] or [`ErrorKind::NotFound`] if the requested base cannot be one.
    pub fn of(
        objects: &Arc<dyn Objects>,
        files: &BTreeMap<String, BackupFiles>,
        wanted: &WantedBase,
        like: &NewBackup<'_>,
    ) -> Result<Self> {
        let mut chosen = Self::default();
        chosen.choose(objects, files, wanted, like)?;
        Ok(chosen)
    }

    fn choose(
        &mut self,
        objects: &Arc<dyn Objects>,
        files: &BTreeMap<String, BackupFiles>,
        wanted: &WantedBase,
        like: &NewBackup<'_>,
    ) -> Result<()> {
        self.archives = match wanted.full {
            true => Vec::new(),
            false => candidates(objects, files, wanted, like, &self.gone, &mut self.damage)?,
        };
        Ok(())
    }
}

/// Returns the latest complete backup of this source, and the durable part of a later one that
/// died.
fn candidates(
    objects: &Arc<dyn Objects>,
    files: &BTreeMap<String, BackupFiles>,
    wanted: &WantedBase,
    like: &NewBackup<'_>,
    gone: &HashSet<String>,
    damage: &mut BTreeSet<String>,
) -> Result<Vec<Archive>> {
    if let Some(base) = &wanted.base {
        return asked_for(objects, base, like).map(|archive| vec![archive]);
    }
    let complete = ids_of(files, BackupState::Listed);
    let mut partial = ids_of(files, BackupState::Partial);
    partial.retain(|id| is_dead(&**objects, id));
    platform::debug(|| {
        format!(
            "{} backups were interrupted and can be resumed",
            partial.len()
        )
    });
    let is_left = |id: &&String| !gone.contains(*id);
    let latest = latest_complete(objects, complete.iter().rev().filter(is_left), like, damage);
    let is_later = |id: &&String| latest.as_ref().is_none_or(|latest| **id > latest.root.id);
    let interrupted = partial
        .iter()
        .rev()
        .filter(is_later)
        .filter(is_left)
        .filter_map(|id| Archive::open_partial(objects, id).ok())
        .find(|archive| differs(&archive.root, like).is_none() && has_manifests(archive));
    Ok(interrupted.into_iter().chain(latest).collect())
}

/// Returns the latest complete backup of this source among `ids`, which are newest first.
fn latest_complete<'a>(
    objects: &Arc<dyn Objects>,
    ids: impl Iterator<Item = &'a String>,
    like: &NewBackup<'_>,
    damage: &mut BTreeSet<String>,
) -> Option<Archive> {
    let mut alike = ids.filter_map(|id| match Archive::open_backup(objects, id) {
        Ok(archive) => differs(&archive.root, like).is_none().then_some(archive),
        Err(error) => {
            damage.extend((error.kind == ErrorKind::Corrupt).then(|| error.line()));
            None
        }
    });
    // A backup of some names contains few of the files that another one wants.
    let suits = |archive: &Archive| is_part(like.left_out) || !is_part(&archive.root.left_out);
    match alike.next() {
        Some(latest) if !suits(&latest) => alike.find(suits).or(Some(latest)),
        latest => latest,
    }
}

/// Returns whether the options choose single names of the source.
pub(crate) fn is_part(left_out: &[String]) -> bool {
    left_out
        .iter()
        .any(|option| option.starts_with("--files-from"))
}

/// Returns whether all manifests that the backup refers to exist. An interrupted copy lacks some of
/// them.
fn has_manifests(archive: &Archive) -> bool {
    let mut ids = archive.root.referenced_backups().into_iter().chain([""]);
    ids.all(|id| {
        archive
            .store()
            .len(&ObjectName::Manifest(id.to_owned()))
            .is_ok()
    })
}

fn asked_for(objects: &Arc<dyn Objects>, base: &str, like: &NewBackup<'_>) -> Result<Archive> {
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

/// Returns the id of the latest backup of the same source.
fn latest_alike(objects: &Arc<dyn Objects>, like: &NewBackup<'_>) -> Result<String> {
    let is_alike = |root: &Root| !matches!(differs(root, like), Some(OTHER_SOURCE | NOT_READ));
    let alike = list_backups(objects)?
        .filter_map(|(id, root)| root.is_ok_and(|root| is_alike(&root)).then_some(id));
    alike.last().ok_or_else(|| {
        let what = format!(
            "could not find a backup in {} that could be the base",
            objects.describe("")
        );
        Error::new(ErrorKind::NotFound, what).because("it has no backup of this source")
    })
}

/// Is it the pseudonym that stands in the clear head of a root, where no key opens the rest?
fn is_pseudonym(source: &SourceInfo) -> bool {
    source.paths.is_empty() && source.host.starts_with(PSEUDONYM)
}

const NOT_READ: &str =
    "the key of this host does not read it, and the host has no copy of its list of files";
const OTHER_SOURCE: &str = "it is of another source";

/// Returns the reason why a backup cannot be the base of this one.
fn differs(base: &Root, like: &NewBackup<'_>) -> Option<&'static str> {
    let (then, now) = (&base.options, like.options);
    let same_source = match (&base.postgres, like.cluster) {
        (Some(then), Some(now)) => then.system_identifier == now.system_identifier,
        (None, None) => base.source == *like.origin,
        _ => false,
    };
    match () {
        () if is_pseudonym(&base.source) => Some(NOT_READ),
        () if !same_source => Some(OTHER_SOURCE),
        () if then.codec != now.codec => Some("it is compressed by another codec"),
        () if then.digest != now.digest => Some("its files are digested in another way"),
        () if then.block_bytes != now.block_bytes => Some("its blocks have another size"),
        () => None,
    }
}
