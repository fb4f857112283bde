//! Content that backups of other sources have, for a new backup that refers to it instead of storing it again.
//!
//! The backups are the latest ones of other sources. The new backup names them in its intent and checks then that they exist, as it does
//! with its bases, so that no prune takes what they mention. Each backup lists the contents in its pages
//! ([`fullbore_format::content_list`]). The lists are only hints: a content counts as stored if a page that one of these backups has says
//! so, in a record of the same digest and length. Hosts that may only add backups, and other repositories, may have written pages with
//! wrong digests: their backups have a mark ([`UNPROVEN`]), and their content is also read and compared.

use super::{
    base::{Base, NewBackup},
    content_table::{ContentTable, ContentTableBuilder, RecordPlace},
    counted::counted,
    ids::source_letters,
    listed::ids_of,
    roots::{BackupFiles, BackupState, key},
};
use crate::archive::{Archive, PageCache, extents::FileContent, frame_cache::FrameCache};
use fullbore_format::{
    content_list::{ContentListReader, ListedContent, short_digest},
    digest::Algorithm,
    entry::Entry,
    error::Result,
    layout::{CONTENTS, ROOT, UNPROVEN},
    page::{EntryState, PageItem, describe_whole_file},
    root::{Live, Root, is_pseudonym},
};
use fullbore_pipeline::{
    known::{BaseEntry, KnownContent, ReadContent, StoredContent, Trust},
    sink::Referred,
};
use fullbore_platform as platform;
use fullbore_platform::queue::{Locked, run_each};
use fullbore_storage::{Objects, SealedObjects, at_once};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, OnceLock},
};

/// Other sources at most. Their latest backups are named in the intent, which has 64 KiB at most.
const MAX_SOURCES: usize = 256;

/// As [`MAX_SOURCES`], of a backup with a base where each answer takes long: most of its content is in the base.
const FEW_SOURCES: usize = 8;

/// Backups of the own host at most where a server lets a host refer to its own only. It takes 16 names in an intent, some of them of bases.
const MAX_OF_HOST: usize = 12;

/// Bytes of a list that are read at once.
const READ_BYTES: u64 = 1 << 20;

/// Lists that are read at the same time where each answer takes long.
const LISTS_AT_ONCE: usize = 4;

/// Records of one size that are looked at for a large file.
const LOOKED_AT: usize = 8;

/// The latest backups of other sources, which are not announced yet.
pub struct OtherSources {
    objects: Arc<dyn Objects>,
    archives: Vec<Archive>,
    host: String,
    /// Backups with a list, by their ids.
    lists: HashSet<String>,
    memory_bytes: u64,
}

impl OtherSources {
    /// Chooses among the backups of a listing, for the new backup with this id, which may have a base. What is found has at most `memory_bytes`.
    ///
    /// A key that cannot read, and a backup without digests that prove equality, share nothing.
    pub fn choose(
        objects: &Arc<dyn Objects>,
        files: &BTreeMap<String, BackupFiles>,
        new_backup: &NewBackup<'_>,
        (id, has_base): (&str, bool),
        memory_bytes: u64,
    ) -> Self {
        let mut chosen = Self {
            objects: objects.clone(),
            archives: Vec::new(),
            host: new_backup.origin.host.clone(),
            lists: HashSet::new(),
            memory_bytes,
        };
        let can_read = objects.as_sealed().is_none_or(SealedObjects::reads);
        if !can_read || new_backup.options.digest != Algorithm::Blake3 {
            return chosen;
        }
        let has_list = |(_, files): &(&String, &BackupFiles)| files.has(CONTENTS);
        let lists = files.iter().filter(has_list).map(|(id, _)| id.clone());
        chosen.lists = lists.collect();
        if chosen.lists.is_empty() {
            return chosen;
        }
        let most = match has_base && objects.answers_late() {
            true => FEW_SOURCES,
            false => MAX_SOURCES,
        };
        let pages = Arc::new(PageCache::shared((memory_bytes / 4) as usize));
        let mut met = HashSet::from([source_letters(id).to_owned()]);
        let newest = counted(ids_of(files, BackupState::Listed))
            .into_iter()
            .rev();
        let each: Vec<String> = newest
            .filter(|id| met.insert(source_letters(id).to_owned()))
            .take(most)
            .collect();
        for some in each.chunks(at_once(&**objects)) {
            let opened = run_each(some, |id| Archive::open_backup(objects, id));
            for archive in opened {
                match archive {
                    Ok(archive) if chosen.is_fit(&archive, new_backup) => {
                        chosen.archives.push(archive.with_pages(pages.clone()));
                    }
                    Ok(_) => {}
                    Err(error) => platform::debug(|| error.line()),
                }
            }
        }
        // Content of this host needs no look, so it comes first.
        let host = chosen.host.clone();
        chosen
            .archives
            .sort_by_key(|archive| archive.root.source.host != host);
        chosen
    }

    /// Returns whether content of this backup can stand in the new one: frames and digests are of the same kinds, and a person made it,
    /// or everybody may read it.
    fn is_fit(&self, archive: &Archive, new_backup: &NewBackup<'_>) -> bool {
        let (root, options) = (&archive.root, new_backup.options);
        let sealed = self.objects.as_sealed();
        root.source != *new_backup.origin
            && root.postgres.is_none()
            && new_backup.cluster.is_none()
            && root.options.codec == options.codec
            && root.options.digest == options.digest
            && root.options.block_bytes == options.block_bytes
            && !is_pseudonym(&root.source)
            && !sealed.is_some_and(|sealed| sealed.is_of_put_key(&root.id))
    }

    pub fn is_empty(&self) -> bool {
        self.archives.is_empty()
    }

    pub fn ids(&self) -> Vec<String> {
        { self.archives.iter() }
            .map(|archive| archive.root.id.clone())
            .collect()
    }

    /// Leaves the backups of this host, for a server that lets a host refer to its own backups only.
    #[must_use]
    pub fn of_host_only(mut self) -> Self {
        let host = self.host.clone();
        self.archives
            .retain(|archive| archive.root.source.host == host);
        self.archives.truncate(MAX_OF_HOST);
        self
    }

    /// Returns whether nobody made the backup who may not change others. The mark was there before the root.
    fn is_proven(&self, id: &str, referred: &Referred) -> bool {
        let mark = key(id, UNPROVEN);
        // A listing without the root may be older than the backup.
        let sizes = referred.sizes.as_ref();
        match sizes.filter(|sizes| sizes.contains_key(&key(id, ROOT))) {
            Some(sizes) => !sizes.contains_key(&mark),
            None => matches!(self.objects.stat(&mark), Ok(None)),
        }
    }

    /// The content of the backups that are still there, as announced; `None` if none is.
    pub fn announced(
        mut self,
        referred: Referred,
        new_backup: &NewBackup<'_>,
    ) -> Option<SharedContent> {
        let gone: HashSet<&String> = referred.gone.iter().collect();
        self.archives
            .retain(|archive| !gone.contains(&archive.root.id));
        if self.archives.is_empty() {
            return None;
        }
        let trusted = { self.archives.iter() }
            .map(|archive| {
                archive.root.source.host == self.host || self.is_proven(&archive.root.id, &referred)
            })
            .collect();
        let base = Base::of_others(&self.objects, self.archives, new_backup, referred);
        let archives: Vec<Arc<Archive>> = base.archives().cloned().collect();
        let comparison = Arc::new(StoredComparison {
            archive: archives.first()?.clone(),
            frames: FrameCache::new((self.memory_bytes / 4) as usize),
        });
        Some(SharedContent {
            objects: self.objects,
            archives,
            trusted,
            base,
            lists: self.lists,
            table_bytes: self.memory_bytes / 2,
            frame_bytes: new_backup.options.frame_bytes,
            table: OnceLock::new(),
            comparison,
            used: Mutex::default(),
        })
    }
}

/// Content of other sources that a new backup may refer to.
pub struct SharedContent {
    objects: Arc<dyn Objects>,
    archives: Vec<Arc<Archive>>,
    /// For each of them, whether its digests are taken to be true: who made it can change the repository, or is this host.
    trusted: Vec<bool>,
    /// The same backups, with the state of their segments.
    base: Base,
    lists: HashSet<String>,
    table_bytes: u64,
    frame_bytes: u64,
    /// Made when the first file asks: if nothing is new, no list is read.
    table: OnceLock<ContentTable>,
    comparison: Arc<StoredComparison>,
    /// The backups by which content was found.
    used: Mutex<BTreeSet<String>>,
}

impl fmt::Debug for SharedContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids = { self.archives.iter() }.map(|archive| &archive.root.id);
        f.debug_list().entries(ids).finish()
    }
}

/// Compares content with what is stored.
struct StoredComparison {
    /// Any of the backups: each of them reads the segments of all.
    archive: Arc<Archive>,
    frames: FrameCache,
}

impl fmt::Debug for StoredComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoredComparison")
    }
}

impl StoredContent for StoredComparison {
    fn is(&self, entry: &BaseEntry, at: u64, data: &[u8]) -> bool {
        let Some(content) = FileContent::new(entry.parts.to_vec()) else {
            return false;
        };
        let mut rest = data;
        for range in content.runs(at, data.len() as u64) {
            let frame = self
                .frames
                .plain(&self.archive, range.segment, &range.frame, true);
            let frame = frame.inspect_err(|error| platform::debug(|| error.line()));
            let Ok(frame) = frame else { return false };
            let Some(behind) = range
                .of(&frame)
                .and_then(|stored| rest.strip_prefix(stored))
            else {
                return false;
            };
            rest = behind;
        }
        rest.is_empty()
    }
}

impl KnownContent for SharedContent {
    fn find(&self, content: &ReadContent<'_>) -> Option<BaseEntry> {
        let table = self.table();
        let place = table.with_digest(short_digest(content.digest)?)?;
        let (item, archive) = self.item(table, place)?;
        let is_same = item.entry.is_file()
            && item.state == EntryState::Whole
            && !item.entry.is_sparse()
            && item.digest.as_ref() == Some(content.digest)
            && describe_whole_file(std::slice::from_ref(&item))
            && item.described_bytes() == content.data.len() as u64;
        if !is_same {
            return None;
        }
        // The other records of the page are not held with it.
        let parts = Arc::new([item.as_only_part()]);
        let known = self.base.usable(BaseEntry::new(parts, Trust::Nothing))?;
        let known = self.by_trust(known, archive);
        known.is_stored_as(0, content.data).then(|| {
            self.note(archive);
            known
        })
    }
}

impl SharedContent {
    /// Returns the file that a large one is compared with, block by block: one of the same size, best of the same path, name or time.
    pub fn of_large_file(&self, entry: &Entry) -> Option<BaseEntry> {
        if entry.is_sparse() || !entry.is_file() || entry.size() <= self.frame_bytes {
            return None;
        }
        let table = self.table();
        let found = table.with_size(entry.size()).take(LOOKED_AT);
        let found = found.filter_map(|place| self.item(table, place));
        let alike = found.filter(|(item, _)| item.entry.size() == entry.size());
        let (item, archive) = alike.max_by_key(|(item, _)| likeness(&item.entry, entry))?;
        let parts = match item.more {
            true => self.archives.get(archive)?.find(&item.entry.path).ok()?,
            false => vec![item.as_only_part()],
        };
        let is_whole = describe_whole_file(&parts) && !parts[0].entry.is_sparse();
        let known = BaseEntry::new(parts.into(), Trust::Nothing);
        if !is_whole || !known.last().state.is_stored() || !known.has_blocks() {
            return None;
        }
        let known = self.base.usable(known)?;
        self.note(archive);
        Some(self.by_trust(known, archive))
    }

    fn by_trust(&self, known: BaseEntry, archive: usize) -> BaseEntry {
        match self.trusted.get(archive) {
            Some(true) => known,
            _ => known.unproven(self.comparison.clone()),
        }
    }

    fn note(&self, archive: usize) {
        let mut used = self.used.locked();
        if let Some(archive) = self.archives.get(archive)
            && !used.contains(&archive.root.id)
        {
            used.insert(archive.root.id.clone());
        }
    }

    /// The backups of other sources by which content was found.
    pub fn used(&self) -> BTreeSet<String> {
        self.used.locked().clone()
    }

    /// Fills in the sizes of the segments that are referred to.
    pub fn measure(&self, live: &mut [Live]) {
        self.base.measure(live);
    }

    /// The state of the segments of these backups.
    pub fn as_base(&self) -> &Base {
        &self.base
    }

    /// Returns the record at this place, and the number of its backup.
    fn item(&self, table: &ContentTable, (page, record): RecordPlace) -> Option<(PageItem, usize)> {
        let (archive, page) = *table.pages.get(page as usize)?;
        let archive = archive as usize;
        let page = self.archives.get(archive)?.page(page as usize);
        let page = page.inspect_err(|error| platform::debug(|| error.line()));
        Some((PageItem::new(page.ok()?, record.into())?, archive))
    }

    fn table(&self) -> &ContentTable {
        self.table.get_or_init(|| self.read_lists())
    }

    /// Reads the lists of all backups whose pages the chosen ones have. A list that cannot be read costs its contents only.
    fn read_lists(&self) -> ContentTable {
        let mut pages = Vec::new();
        let mut numbers: HashMap<&str, HashMap<u64, u32>> = HashMap::new();
        let mut owners = Vec::new();
        for (number, archive) in self.archives.iter().enumerate() {
            for (index, page) in archive.root.pages.iter().enumerate() {
                let Some(offset) = page.manifest_offset else {
                    continue;
                };
                let owner = owner_of(&page.backup, &archive.root);
                if !self.lists.contains(owner) {
                    continue;
                }
                let of_owner = numbers.entry(owner).or_insert_with(|| {
                    owners.push(owner);
                    HashMap::new()
                });
                of_owner.entry(offset).or_insert_with(|| {
                    pages.push((number as u32, index as u32));
                    pages.len() as u32 - 1
                });
            }
        }
        let mut builder = ContentTableBuilder::new(self.table_bytes, self.frame_bytes, pages);
        let at_once = if self.objects.answers_late() {
            LISTS_AT_ONCE
        } else {
            1
        };
        for some in owners.chunks(at_once) {
            let builder = Mutex::new(&mut builder);
            let read = run_each(some, |owner| {
                let numbers = &numbers[*owner];
                self.read_list(owner, |file| {
                    if let Some(page) = numbers.get(&file.page) {
                        builder.locked().add(&file, *page);
                    }
                })
            });
            for error in read.into_iter().filter_map(Result::err) {
                platform::debug(|| error.line());
            }
        }
        builder.finish()
    }

    fn read_list(&self, owner: &str, mut each: impl FnMut(ListedContent)) -> Result<()> {
        let key = key(owner, CONTENTS);
        let bytes = self.objects.stat(&key)?.unwrap_or(0);
        let mut reader = ContentListReader::default();
        let mut offset = 0;
        while offset < bytes {
            let len = READ_BYTES.min(bytes - offset);
            let mut piece = Vec::new();
            self.objects
                .read_at(&key, offset, len as usize, &mut piece)?;
            if !reader.add(&piece, &mut each) {
                platform::debug(|| format!("{key:?} is no list of contents"));
                break;
            }
            offset += len;
        }
        Ok(())
    }
}

fn owner_of<'a>(backup: &'a str, root: &'a Root) -> &'a str {
    if backup.is_empty() { &root.id } else { backup }
}

/// Returns how much a file resembles another one of the same size.
fn likeness(file: &Entry, other: &Entry) -> (bool, bool, bool) {
    (
        file.path == other.path,
        file_name(&file.path) == file_name(&other.path),
        file.mtime == other.mtime,
    )
}

fn file_name(path: &[u8]) -> &[u8] {
    let name = path.rsplit(|byte| *byte == b'/').next();
    name.unwrap_or_default()
}
