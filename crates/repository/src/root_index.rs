//! An index of the documents of all backups, on this host: what a document says that maintenance needs, in the order of ids.
//!
//! It saves requests and time, and nothing depends on it. The listing of the storage alone says which documents there are. An entry
//! answers for a document only if the listing has the same backup in the same state, with the same length and version. Anything else is
//! read. An entry whose document is gone is dropped. The file belongs to this user, in a directory of this user, and is never in the
//! repository: nobody who may only write there can add to it. Of an encrypted repository its blocks are sealed with the key of the
//! repository, and it counts as long as the keys are the same. It may be deleted at any time.
//!
//! Without a directory the index is a temporary file without a name, for commands that need the documents twice.
//!
//! Memory: the ids of all backups, each once, and one block.

use super::{
    root_reader::Wanted,
    roots::{BackupFiles, BackupState, NamePool, NeededObject, RootFacts, Stamp, is_answered},
};
use fullbore_crypt::{KeyRing, open_by_person, seal_object};
use fullbore_platform::{debug, guarded_path::own_dir, write};
use std::{
    collections::{BTreeMap, HashMap},
    fs::{self, File},
    io::{self, BufReader, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process,
    sync::Arc,
};

/// The beginning of a file; another form has another one.
const MAGIC: &[u8; 16] = b"fullbore roots 1";
/// Bytes of entries after which a block ends.
const BLOCK_BYTES: usize = 256 << 10;
/// Bytes of a block at most: one entry may be long.
const MAX_BLOCK_BYTES: usize = 256 << 20;
/// Bytes of an index at most; what does not fit is read.
const MAX_INDEX_BYTES: u64 = 2 << 30;
/// Entries that wait for documents that are read; more of them are dropped, and read the next time.
const MAX_PENDING: usize = 1000;
/// Bytes of a digest in front of a block.
const DIGEST_BYTES: usize = 32;

/// Where indexes are.
#[derive(Debug, Clone, Default)]
pub struct IndexPlace {
    dir: Option<PathBuf>,
    /// Documents of a repository for which an index is kept.
    least: usize,
}

impl IndexPlace {
    /// Documents of a repository that takes longer to read than an index is worth.
    const LEAST: usize = 200;

    /// Keeps indexes of large repositories in a directory; `None` keeps none.
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self {
            dir,
            least: Self::LEAST,
        }
    }

    /// Keeps indexes of repositories with so many documents.
    #[must_use]
    pub fn of_at_least(self, least: usize) -> Self {
        Self { least, ..self }
    }
}

/// Who may use an index, and for what.
#[derive(Clone)]
pub(super) struct IndexOwner {
    /// The storage, the repository and the access to it.
    pub name: blake3::Hash,
    /// The state of the keys of an encrypted repository.
    pub keys: blake3::Hash,
    pub ring: Option<Arc<KeyRing>>,
}

impl IndexOwner {
    fn header(&self) -> Vec<u8> {
        [&MAGIC[..], self.name.as_bytes(), self.keys.as_bytes()].concat()
    }

    fn digest(&self, number: u64, block: &[u8]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.header());
        hasher.update(&number.to_le_bytes());
        hasher.update(block);
        hasher.finalize()
    }

    /// The key of a block, to which a sealed one is bound.
    fn block_key(&self, number: u64) -> String {
        format!("index of roots/{}/{number}", self.keys.to_hex())
    }

    fn sealed(&self, number: u64, block: Vec<u8>) -> io::Result<Vec<u8>> {
        match &self.ring {
            None => Ok(block),
            Some(ring) => seal_object(&self.block_key(number), &block, ring, None)
                .map_err(|error| io::Error::other(error.line())),
        }
    }

    fn opened(&self, number: u64, block: Vec<u8>) -> Option<Vec<u8>> {
        match &self.ring {
            None => Some(block),
            Some(ring) => open_by_person(&self.block_key(number), &block, ring, "the index").ok(),
        }
    }
}

/// The index of one repository.
pub(super) struct RootIndex {
    owner: IndexOwner,
    /// The file that is kept; `None` keeps none.
    path: Option<PathBuf>,
    least: usize,
    /// What this process wrote last, if it is not kept.
    spool: Option<File>,
}

impl RootIndex {
    pub(super) fn new(place: &IndexPlace, owner: IndexOwner) -> Self {
        let dir = place.dir.as_ref().map(|dir| dir.join("roots"));
        let dir = dir.filter(|dir| match own_dir(dir) {
            Ok(()) => true,
            Err(error) => {
                debug(|| format!("no index in {dir:?}: {error}"));
                false
            }
        });
        Self {
            path: dir.map(|dir| dir.join(owner.name.to_hex().as_str())),
            owner,
            least: place.least,
            spool: None,
        }
    }

    /// Begins to read the entries and to write them anew.
    pub(super) fn pass(&self, documents: usize) -> IndexPass {
        let old = self.spool.as_ref().and_then(|spool| {
            let mut file = spool.try_clone().ok()?;
            file.rewind().ok()?;
            Some(file)
        });
        let old = old.or_else(|| File::open(self.path.as_ref()?).ok());
        let reader = old.and_then(|file| IndexReader::new(file, &self.owner));
        let is_kept = documents >= self.least;
        let target = self.path.as_ref().filter(|_| is_kept);
        let writer = IndexWriter::new(target.map(PathBuf::as_path), &self.owner);
        IndexPass {
            reader,
            writer: writer
                .inspect_err(|error| debug(|| format!("could not begin an index: {error}")))
                .ok(),
            pending: Vec::new(),
            is_waiting: false,
            is_changed: false,
        }
    }

    /// Ends a pass: the new entries take the place of the old ones if they are others.
    pub(super) fn end(&mut self, pass: IndexPass) {
        let is_changed = pass.is_changed || pass.reader.is_some_and(|reader| reader.is_broken);
        let Some(writer) = pass.writer.filter(|_| is_changed) else {
            return;
        };
        match writer.finish() {
            Ok(spool) => self.spool = spool.or(self.spool.take()),
            Err(error) => debug(|| format!("could not write an index: {error}")),
        }
    }
}

/// One way through the index, in the order of ids.
pub(super) struct IndexPass {
    reader: Option<IndexReader>,
    writer: Option<IndexWriter>,
    /// Entries that are not written yet: earlier ones may have to be read.
    pending: Vec<IndexEntry>,
    /// Whether a document was looked for that was not added yet.
    is_waiting: bool,
    is_changed: bool,
}

impl IndexPass {
    /// Returns the facts of a document if the index has them; ids ascend from call to call. Entries before it stay if `files` still
    /// has their documents.
    pub(super) fn find(
        &mut self,
        wanted: &Wanted,
        files: &BTreeMap<String, BackupFiles>,
        names: &mut NamePool,
    ) -> Option<Arc<RootFacts>> {
        self.pass_over(Some(&wanted.id), files, names);
        self.is_waiting = true;
        let reader = self.reader.as_mut()?;
        let entry = reader.next_if(names, |entry| entry.id == wanted.id)?;
        if entry.state == wanted.state && wanted.stamp == Some(entry.stamp) {
            return Some(entry.facts);
        }
        self.is_changed = true;
        None
    }

    /// Copies the entries before an id, or all.
    fn pass_over(
        &mut self,
        before: Option<&str>,
        files: &BTreeMap<String, BackupFiles>,
        names: &mut NamePool,
    ) {
        let is_before = |entry: &IndexEntry| before.is_none_or(|before| &*entry.id < before);
        while let Some(reader) = &mut self.reader
            && let Some(entry) = reader.next_if(names, is_before)
        {
            let is_there = is_answered(files, &entry.id, entry.state, entry.stamp);
            if is_there && self.pending.len() < MAX_PENDING {
                self.pending.push(entry);
            } else {
                self.is_changed = true;
            }
            if !self.is_waiting {
                self.write_pending();
            }
        }
    }

    /// Copies the rest.
    pub(super) fn pass_over_rest(
        &mut self,
        files: &BTreeMap<String, BackupFiles>,
        names: &mut NamePool,
    ) {
        self.pass_over(None, files, names);
        self.write_pending();
    }

    /// Adds a document that was found, or read.
    pub(super) fn add(&mut self, document: &Wanted, facts: &Arc<RootFacts>, is_new: bool) {
        let Some(stamp) = document.stamp else {
            return;
        };
        self.is_changed |= is_new;
        self.pending.push(IndexEntry {
            id: document.id.clone(),
            state: document.state,
            stamp,
            facts: facts.clone(),
        });
    }

    /// Writes what was added, and what was passed over before it.
    pub(super) fn write_pending(&mut self) {
        self.is_waiting = false;
        self.pending.sort_by(|a, b| a.id.cmp(&b.id));
        for entry in self.pending.drain(..) {
            let Some(writer) = &mut self.writer else {
                continue;
            };
            if let Err(error) = writer.add(&entry) {
                debug(|| format!("could not write an index: {error}"));
                self.writer = None;
            }
        }
    }
}

/// What the index says of a document.
struct IndexEntry {
    id: Arc<str>,
    state: BackupState,
    stamp: Stamp,
    facts: Arc<RootFacts>,
}

struct IndexReader {
    file: BufReader<File>,
    owner: IndexOwner,
    number: u64,
    block: Vec<u8>,
    at: usize,
    /// Names in the order in which they were first used.
    known: Vec<Arc<str>>,
    next: Option<IndexEntry>,
    /// Whether something is wrong with the file.
    is_broken: bool,
}

impl IndexReader {
    fn new(file: File, owner: &IndexOwner) -> Option<Self> {
        let mut file = BufReader::new(file);
        let wanted = owner.header();
        let mut header = vec![0; wanted.len()];
        file.read_exact(&mut header).ok()?;
        (header == wanted).then(|| Self {
            file,
            owner: owner.clone(),
            number: 0,
            block: Vec::new(),
            at: 0,
            known: Vec::new(),
            next: None,
            is_broken: false,
        })
    }

    /// Returns the next entry if it is wanted.
    fn next_if(
        &mut self,
        names: &mut NamePool,
        is_wanted: impl Fn(&IndexEntry) -> bool,
    ) -> Option<IndexEntry> {
        if self.next.is_none() && !self.is_broken {
            if self.at >= self.block.len() {
                self.read_block()?;
            }
            let entry = self.read_entry(names);
            self.is_broken = entry.is_none();
            self.next = entry;
        }
        self.next.take_if(|entry| is_wanted(entry))
    }

    /// Reads the next block; `None` at the end, or where the file is damaged.
    fn read_block(&mut self) -> Option<()> {
        let mut length = [0; 4];
        self.file.read_exact(&mut length).ok()?;
        let length = u32::from_le_bytes(length) as usize;
        let block = self.read_checked(length);
        self.is_broken = block.is_none();
        (self.block, self.at) = (block?, 0);
        self.number += 1;
        Some(())
    }

    fn read_checked(&mut self, length: usize) -> Option<Vec<u8>> {
        if length > MAX_BLOCK_BYTES {
            return None;
        }
        let mut digest = [0; DIGEST_BYTES];
        self.file.read_exact(&mut digest).ok()?;
        let mut block = Vec::new();
        let limit = length as u64;
        (&mut self.file).take(limit).read_to_end(&mut block).ok()?;
        let is_whole = self.owner.digest(self.number, &block) == digest;
        self.owner.opened(self.number, block).filter(|_| is_whole)
    }

    fn read_entry(&mut self, names: &mut NamePool) -> Option<IndexEntry> {
        let id = self.name(names)?;
        let state = BackupState::of_number(self.byte()?)?;
        let stamp = *self.bytes(16)?.first_chunk()?;
        let mark = *self.bytes(16)?.first_chunk()?;
        let put_key = self.text()?;
        let root = self.text()?.into_bytes();
        let mut needs = Vec::new();
        for _ in 0..self.number()? {
            let backup = self.name(names)?;
            for _ in 0..self.number()? {
                let name = self.name(names)?;
                let bytes = self.number()?;
                needs.push(NeededObject {
                    backup: backup.clone(),
                    name,
                    bytes,
                });
            }
        }
        let facts = RootFacts {
            mark,
            put_key: Some(put_key).filter(|name| !name.is_empty()),
            root,
            needs,
        };
        Some(IndexEntry {
            id,
            state,
            stamp,
            facts: Arc::new(facts),
        })
    }

    fn bytes(&mut self, count: usize) -> Option<&[u8]> {
        let bytes = self.block.get(self.at..)?.get(..count)?;
        self.at += count;
        Some(bytes)
    }

    fn byte(&mut self) -> Option<u8> {
        self.bytes(1)?.first().copied()
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        String::from_utf8(self.bytes(length)?.to_vec()).ok()
    }

    /// A name that was used before, by its number, or 0 and the name.
    fn name(&mut self, names: &mut NamePool) -> Option<Arc<str>> {
        let number = self.number()?;
        if let Some(index) = number.checked_sub(1) {
            return self.known.get(usize::try_from(index).ok()?).cloned();
        }
        let text = self.text()?;
        let name = names.shared(&text);
        self.known.push(name.clone());
        Some(name)
    }
}

struct IndexWriter {
    file: File,
    /// The name that the file has, and gets; `None` for a file without one.
    names: Option<(PathBuf, PathBuf)>,
    owner: IndexOwner,
    number: u64,
    block: Vec<u8>,
    written: u64,
    known: HashMap<Arc<str>, u64>,
}

impl IndexWriter {
    fn new(target: Option<&Path>, owner: &IndexOwner) -> io::Result<Self> {
        let (mut file, names) = match target {
            None => (write::anonymous_file(&std::env::temp_dir())?, None),
            Some(target) => {
                let written = target.with_extension(process::id().to_string());
                let _ = fs::remove_file(&written); // one that a killed process with this number left
                let file = File::options()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&written)?;
                (file, Some((written, target.to_owned())))
            }
        };
        file.write_all(&owner.header())?;
        Ok(Self {
            file,
            names,
            owner: owner.clone(),
            number: 0,
            block: Vec::new(),
            written: 0,
            known: HashMap::new(),
        })
    }

    fn add(&mut self, entry: &IndexEntry) -> io::Result<()> {
        let facts = &entry.facts;
        self.name(&entry.id);
        self.block.push(entry.state.number());
        self.block.extend_from_slice(&entry.stamp);
        self.block.extend_from_slice(&facts.mark);
        self.text(facts.put_key.as_deref().unwrap_or_default().as_bytes());
        self.text(&facts.root);
        let groups = || facts.needs.chunk_by(|a, b| a.backup == b.backup);
        self.number(groups().count() as u64);
        for group in groups() {
            self.name(&group[0].backup);
            self.number(group.len() as u64);
            for need in group {
                self.name(&need.name);
                self.number(need.bytes);
            }
        }
        if self.block.len() >= BLOCK_BYTES {
            self.end_block()?;
        }
        if self.written > MAX_INDEX_BYTES {
            return Err(io::Error::other("it becomes too large"));
        }
        Ok(())
    }

    fn end_block(&mut self) -> io::Result<()> {
        let block = std::mem::take(&mut self.block);
        let block = self.owner.sealed(self.number, block)?;
        let digest = self.owner.digest(self.number, &block);
        let length = u32::try_from(block.len()).map_err(io::Error::other)?;
        self.file.write_all(&length.to_le_bytes())?;
        self.file.write_all(digest.as_bytes())?;
        self.file.write_all(&block)?;
        self.written += block.len() as u64;
        self.number += 1;
        Ok(())
    }

    /// Ends the file. Returns it if it has no name.
    fn finish(mut self) -> io::Result<Option<File>> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        match self.names.take() {
            None => Ok(Some(self.file.try_clone()?)),
            Some((written, target)) => {
                let renamed = fs::rename(&written, &target);
                if renamed.is_err() {
                    let _ = fs::remove_file(&written); // the first error counts
                }
                renamed.map(|()| None)
            }
        }
    }

    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.block.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.block.push(number as u8);
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.block.extend_from_slice(text);
    }

    fn name(&mut self, name: &Arc<str>) {
        if let Some(number) = self.known.get(name) {
            return self.number(*number);
        }
        self.number(0);
        self.text(name.as_bytes());
        let number = self.known.len() as u64 + 1;
        self.known.insert(name.clone(), number);
    }
}

impl Drop for IndexWriter {
    fn drop(&mut self) {
        if let Some((written, _)) = self.names.take() {
            let _ = fs::remove_file(written); // nobody reads it
        }
    }
}
