//! The earlier backups that a new one is compared with.
//!
//! The base is the latest complete backup of the same source. If a later backup of the source was
//! interrupted, its durable part is a second base. A new backup refers to a segment only if the
//! segment exists and is not about to be pruned; a missing segment that no prune is deleting is
//! reported as damage. Segments with few live bytes are not referred to any more, so that a prune
//! can delete them.

pub use super::base_search::{ChosenBases, Unlike, is_of_source, is_part};
use super::{
    compare::{BaseCursor, Compare, CompareRules, ComparedEntries},
    found_damage::{DamagedPlaces, damage_line, extents_of, runs_in},
    fragmentation,
    renames::RenameIndex,
    roots::{backup_files, key},
    tape_catalog::needed_tapes,
};
use crate::archive::{
    Archive,
    object::{ObjectName, Sealing},
};
use fullbore_format::{
    digest::Algorithm,
    entry::{ByteRun, EntryKind},
    error::{Error, ErrorKind, Result},
    layout::{MANIFEST, segment},
    page::{PageItem, SegmentId, describe_whole_file},
    root::{BackupOptions, ClusterInfo, EarlierPlace, Live, Root, SourceInfo, TapePlace},
    segment::SERVICE_HEADER_BYTES,
    sizes,
};
use fullbore_pipeline::{
    frame::Scanned,
    known::{BaseEntry, Trust},
    sink::Referred,
    source::Stream,
};
use fullbore_platform::queue::{Locked, run_both};
use fullbore_storage::Objects;
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
    /// Only a backup of a lower level can be the base.
    pub below_level: Option<u8>,
    /// The backup in volumes that ended before its last volume, and goes on now: its id, or the beginning of it.
    pub resume: Option<String>,
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
    /// The level, if it has one.
    pub level: Option<u8>,
}

/// The result of a search for a base.
#[derive(Default)]
pub struct FoundBase {
    /// The base; `None` if there is none, or none was wanted.
    pub base: Option<Base>,
    /// The latest backup of the same source, if it cannot be the base.
    pub unlike: Option<Unlike>,
    /// Damage to earlier backups of the source.
    pub damage: BTreeSet<String>,
    /// Whether there are backups of other sources, and none of this one.
    pub is_new_source: bool,
    /// The name of the cluster in the latest backup of it.
    pub cluster_name: Option<SourceInfo>,
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
    /// Places that a verification found damaged, which must not be referred to.
    damaged: DamagedPlaces,
    /// Where the segments stand that are on tapes.
    places: HashMap<SegmentId, TapePlace>,
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
        new_backup: &NewBackup<'_>,
        mut chosen: ChosenBases,
        mut refer: impl FnMut(&[String]) -> Result<Referred>,
    ) -> Result<FoundBase> {
        loop {
            let archives = &chosen.archives;
            let ids: Vec<String> = archives
                .iter()
                .map(|archive| archive.root.id.clone())
                .collect();
            // Where each call takes long, pages are read while the intent is announced.
            let is_far = objects.answers_late();
            let ((), referred) = run_both(
                is_far,
                || {
                    if is_far {
                        archives.iter().for_each(Archive::read_ahead);
                    }
                },
                || refer(&ids),
            );
            let referred = referred?;
            if referred.gone.is_empty() {
                let ChosenBases {
                    archives,
                    unlike,
                    mut damage,
                    is_new_source,
                    cluster_name,
                    ..
                } = chosen;
                let base = (!archives.is_empty()).then(|| {
                    let memory = DamagedPlaces::read(&**objects, &referred);
                    let sealing = archives[0].store().sealing();
                    let base = Self::new(archives, wanted, new_backup, referred, &mut damage);
                    let damaged = DamagedPlaces::of(&memory, sealing, |id| {
                        base.sizes.get(id).map(|size| size.bytes)
                    });
                    Self { damaged, ..base }
                });
                return Ok(FoundBase {
                    unlike: unlike.filter(|_| base.is_none()),
                    base,
                    damage,
                    is_new_source,
                    cluster_name,
                });
            }
            // A prune removed a base between choice and announcement: choose again without it. Each
            // round removes at least one, so this ends.
            chosen.gone.extend(referred.gone);
            let files = backup_files(&**objects)?;
            chosen.choose(objects, &files, wanted, new_backup)?;
        }
    }

    fn new(
        archives: Vec<Archive>,
        wanted: &WantedBase,
        new_backup: &NewBackup<'_>,
        referred: Referred,
        damage: &mut BTreeSet<String>,
    ) -> Self {
        let digests = new_backup.options.digest == Algorithm::Blake3;
        let rules = CompareRules {
            compare: wanted.compare,
            digests,
            unfinished: digests && new_backup.cluster.is_none(),
            whole_files: false,
        };
        let mut segments = BaseSegments {
            lost: referred.tombstones,
            ..BaseSegments::default()
        };
        for archive in &archives {
            // A directory is asked for each object. A store answers for all of them at once.
            segments.add(
                archive,
                referred.sizes.as_deref(),
                &referred.manifests,
                damage,
            );
        }
        let refers_to_pages = referred.manifests.is_empty();
        let found: Arc<Mutex<BTreeSet<String>>> = Arc::default();
        let archives = archives.into_iter().map(|archive| {
            let (trusted, found) = (is_trusted(&archive.root, new_backup), found.clone());
            (
                Arc::new(
                    archive
                        .as_base(refers_to_pages)
                        .warn_with(move |damage| _ = found.locked().insert(damage.line())),
                ),
                trusted,
            )
        });
        Self {
            archives: archives.collect(),
            rules,
            sizes: segments.sizes,
            lost: segments.lost,
            worn: fragmentation::chosen(segments.live),
            damaged: DamagedPlaces::default(),
            places: HashMap::new(),
            frame_bytes: new_backup.options.frame_bytes,
            block_bytes: new_backup.options.block_bytes,
            moved: Mutex::default(),
            damage: found,
        }
    }

    /// Backups of other sources, whose content a new one may refer to. What of them is missing is not referred to; it is no damage to the
    /// source of the new backup.
    pub(super) fn of_others(
        objects: &Arc<dyn Objects>,
        archives: Vec<Archive>,
        new_backup: &NewBackup<'_>,
        referred: Referred,
    ) -> Self {
        let memory = DamagedPlaces::read(&**objects, &referred);
        let sealing = Sealing::of(&**objects);
        let wanted = WantedBase::default();
        let base = Self::new(
            archives,
            &wanted,
            new_backup,
            referred,
            &mut BTreeSet::new(),
        );
        let bytes = |id: &SegmentId| base.sizes.get(id).map(|size| size.bytes);
        let damaged = DamagedPlaces::of(&memory, sealing, bytes);
        Self { damaged, ..base }
    }

    /// Keeps segments that are fragmented for this source alone: most of their content is that of others, who keep it.
    pub fn keep_shared(&mut self, others: &Self) {
        let is_worn = |id: &SegmentId| !others.sizes.contains_key(id) || others.worn.contains(id);
        self.worn.retain(is_worn);
    }

    /// Bases in volumes, which are on a shelf, the latest first: the volumes are taken to be there, all changed files are
    /// stored whole, and no page of a base is referred to.
    pub(super) fn in_volumes(
        archives: Vec<Archive>,
        wanted: &WantedBase,
        new_backup: &NewBackup<'_>,
    ) -> Self {
        let sizes = archives.iter().flat_map(|archive| segments(&archive.root));
        let sizes = sizes.map(|(id, _, size)| (id, size)).collect();
        let places = archives.iter().flat_map(|archive| places_in(&archive.root));
        let places = places.collect();
        let archives = archives.into_iter().map(|archive| {
            let is_trusted = is_trusted(&archive.root, new_backup);
            (Arc::new(archive.as_base(false)), is_trusted)
        });
        Self {
            archives: archives.collect(),
            rules: CompareRules {
                compare: wanted.compare,
                digests: new_backup.options.digest == Algorithm::Blake3,
                unfinished: false,
                whole_files: true,
            },
            sizes,
            lost: HashSet::new(),
            worn: HashSet::new(),
            damaged: DamagedPlaces::default(),
            places,
            frame_bytes: new_backup.options.frame_bytes,
            block_bytes: new_backup.options.block_bytes,
            moved: Mutex::default(),
            damage: Arc::default(),
        }
    }

    /// Returns the root of the latest complete backup of the source.
    pub fn root(&self) -> Option<&Root> {
        self.archives.first().map(|(archive, _)| &archive.root)
    }

    /// Returns where the segments of earlier backups among these stand, if they are on tapes.
    pub fn places_of(&self, live: &[Live]) -> Vec<EarlierPlace> {
        let found = live.iter().filter_map(|live| {
            let tape = self.places.get(&live.id())?.clone();
            Some(EarlierPlace {
                backup: live.backup.clone(),
                number: live.number,
                tape,
            })
        });
        found.collect()
    }

    /// Returns the names of the tapes that the bases need.
    pub fn tapes(&self) -> BTreeSet<String> {
        let roots = self.archives.iter().map(|(archive, _)| &archive.root);
        roots.flat_map(needed_tapes).collect()
    }

    /// Returns whether each changed file is stored whole.
    pub fn stores_whole_files(&self) -> bool {
        self.rules.whole_files
    }

    /// The pages of which some or all copies could not be read so far.
    pub fn damage(&self) -> BTreeSet<String> {
        self.damage.locked().clone()
    }

    pub(super) fn note(&self, error: &Error) {
        self.damage.locked().insert(error.line());
    }

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

    /// The archives of the base, the latest first.
    pub(super) fn archives(&self) -> impl Iterator<Item = &Arc<Archive>> {
        self.archives.iter().map(|(archive, _)| archive)
    }

    pub fn cluster(&self) -> Option<&ClusterInfo> {
        match &self.archives[..] {
            [(archive, _)] => archive.root.postgres.as_ref(),
            _ => None,
        }
    }

    /// Adds to each object of a scan its record in the base. If the scan is not in archive order,
    /// the records are looked up, and files are always compared by content.
    pub fn compare(self: &Arc<Self>, scan: Stream<Scanned>, is_sorted: bool) -> Stream<Scanned> {
        if !is_sorted {
            let base = self.clone();
            return Box::new(
                scan.map(move |scanned| scanned.map(|scanned| base.looked_up(scanned))),
            );
        }
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
            let Some(SegmentSize { bytes, data }) = self.sizes.get(&live.id()).copied() else {
                continue;
            };
            (live.of_bytes, live.data_bytes) = (bytes, data);
            live.bytes = live.bytes.min(live.of_bytes);
        }
    }

    /// Returns the part of a record that may be referred to; `None` if no part may be. Content in
    /// damaged places and in fragmented segments is stored again; of a large file, only that part.
    pub(super) fn usable(&self, known: BaseEntry) -> Option<BaseEntry> {
        if self.lost.is_empty() && self.worn.is_empty() && self.damaged.is_empty() {
            return Some(known);
        }
        if runs_in(&known, |segment, _| self.lost.contains(segment))
            .next()
            .is_some()
        {
            return None;
        }
        let is_damaged = self.note_damage(&known);
        let fragmented: Vec<ByteRun> = runs_in(&known, |segment, frame| {
            self.worn.contains(segment) || self.damaged.touch(segment, frame)
        })
        .collect();
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
            (again < len / 4 && !is_damaged).then_some(known)
        }
    }

    /// Notes the segments with content of this record that a verification found damaged. Returns whether there are any.
    fn note_damage(&self, known: &BaseEntry) -> bool {
        let extents = known.parts.iter().flat_map(extents_of);
        let damaged =
            extents.filter(|(segment, extent)| self.damaged.touch(segment, &extent.frame));
        let segments: BTreeSet<String> = damaged.map(|(segment, _)| damage_line(segment)).collect();
        let is_any = !segments.is_empty();
        self.damage.locked().extend(segments);
        is_any
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
fn is_trusted(base: &Root, new_backup: &NewBackup<'_>) -> bool {
    let begun = base.time.parse::<jiff::Timestamp>();
    let past = begun.is_ok_and(|begun| begun <= jiff::Timestamp::now());
    let alike = match (&base.postgres, new_backup.cluster) {
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
        let position = (live.stream, live.number);
        match root
            .segments
            .iter()
            .find(|own| live.backup.is_empty() && (own.stream, own.number) == position)
        {
            // A rebuilt root does not say how many bytes are live.
            Some(own) if live.data_bytes == 0 => {
                let copies = copies.get(&position).copied().unwrap_or(0);
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

/// Returns where the segments that a backup refers to stand on tapes, its own and those of earlier ones.
fn places_in(root: &Root) -> impl Iterator<Item = (SegmentId, TapePlace)> + '_ {
    let own = root.segments.iter().filter_map(|segment| {
        let tape = segment.tape.clone()?;
        Some((root.id.clone(), segment.number, tape))
    });
    let earlier = root.earlier_places.iter();
    let earlier = earlier.map(|place| (place.backup.clone(), place.number, place.tape.clone()));
    own.chain(earlier).map(|(backup, number, tape)| {
        let id = SegmentId {
            backup,
            stream: 1,
            number,
        };
        (id, tape)
    })
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
