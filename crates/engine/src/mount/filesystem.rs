//! The answers to the kernel.
//!
//! A backup never changes, so the kernel keeps names, attributes and content in its caches as long as
//! it has room. Files need no handle, so the kernel neither asks for one nor gives it back:
//! two requests less for each small file. Nothing is kept for an inode that the kernel knows.

use super::{
    attributes::{self, ShownOwner},
    backup_tree::{BackupTree, ShownEntry},
    catalog::{BackupCatalog, Catalog},
    inode::{EntryPlace, FIRST, InodePlace},
    open_file::OpenFile,
    read_ahead::{KernelReadAhead, ReadAhead},
    top_tree::{TopEntry, TopTree},
    trouble::Trouble,
};
use fullbore_format::{
    entry::EntryKind,
    error::{Error, ErrorKind, Result},
    page::PageItem,
};
use fullbore_repository::archive::{byte_cache::ByteCache, frame_cache::FrameCache};
use fuser::{
    Errno, FileAttr, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};
use std::{
    ffi::OsStr,
    io,
    os::unix::ffi::OsStrExt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

/// Ten years: for as long as the mount is there.
const FOR_EVER: Duration = Duration::from_secs(315_360_000);
/// Time that the kernel keeps names and attributes above the backups.
const SHORT: Duration = Duration::from_secs(1);
/// Offsets of a listing: 1 follows ".", 2 follows "..", others follow the child of this number.
const FIRST_CHILD: u64 = 3;
/// Distance of the records of two files that a reader of small files reads one after the other.
const NEAR_FILES: u64 = 256;
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// A mount, as the kernel sees it.
pub(super) struct MountedBackups {
    pub(super) catalog: Catalog,
    pub(super) frames: Arc<FrameCache>,
    pub(super) files: ByteCache<u64, OpenFile>,
    pub(super) ahead: ReadAhead,
    pub(super) kernel_ahead: KernelReadAhead,
    /// Bytes that are read ahead of one reader at most.
    pub(super) most_ahead: u64,
    pub(super) owner: ShownOwner,
    pub(super) trouble: Arc<Trouble>,
    pub(super) mounted: SystemTime,
    /// The inode of the small file that was read last.
    pub(super) last_small: AtomicU64,
}

/// An entry with the directory tree that it is in.
enum Found {
    Top(Arc<TopTree>, u64),
    Entry(Arc<BackupTree>, u64, ShownEntry),
}

/// A name of a directory, as both kinds of listings take it.
struct ListedName<'a> {
    name: &'a [u8],
    /// Where the listing goes on behind it.
    next: u64,
    attributes: &'a FileAttr,
    lifetime: Duration,
}

impl MountedBackups {
    fn place(&self, inode: INodeNo) -> InodePlace {
        match (inode.0, self.catalog.many()) {
            (FIRST, None) => InodePlace::Entry {
                backup: 1,
                place: EntryPlace::Root,
            },
            (inode, _) => InodePlace::of(inode),
        }
    }

    fn inode(&self, backup: u64, place: EntryPlace) -> u64 {
        match (place, self.catalog.many()) {
            (EntryPlace::Root, None) => FIRST,
            _ => InodePlace::Entry { backup, place }.inode(),
        }
    }

    /// Returns the directories above the backups, with labels if `path` is below those that need
    /// them.
    fn top(&self, catalog: &BackupCatalog, number: u64) -> Result<Arc<TopTree>> {
        let top = catalog.top(false)?;
        let path = top.entry(number).map(|(path, _)| path.as_str());
        let has_labels = |path: &str| path.starts_with("by-tag") || path.starts_with("hosts");
        // A path that is not there any more had labels, too.
        match path {
            Some(path) if !has_labels(path) => Ok(top),
            _ => catalog.top(true),
        }
    }

    fn found(&self, inode: INodeNo) -> Result<Found> {
        match (self.place(inode), self.catalog.many()) {
            (InodePlace::Top(number), Some(catalog)) => {
                let top = self.top(catalog, number)?;
                match top.entry(number) {
                    Some(_) => Ok(Found::Top(top, number)),
                    None => Err(not_there()),
                }
            }
            (InodePlace::Top(_), None) => Err(not_there()),
            (InodePlace::Entry { backup, place }, _) => {
                let tree = self.catalog.tree(backup)?;
                let entry = tree.entry(place)?.ok_or_else(not_there)?;
                Ok(Found::Entry(tree, backup, entry))
            }
        }
    }

    fn attributes_of(&self, tree: &BackupTree, backup: u64, entry: &ShownEntry) -> FileAttr {
        let inode = self.inode(backup, entry.place);
        let names = match entry.entry() {
            Some(entry) if entry.kind != EntryKind::Directory => tree.names_of(entry),
            _ => 2,
        };
        attributes::of_entry(entry, inode, names, &self.owner, self.mounted)
    }

    /// Returns the attributes of an entry above the backups, or of the root of a backup, and how
    /// long they last.
    fn top_attributes(&self, top: &TopTree, number: u64) -> Result<(FileAttr, Duration)> {
        let Some((_, entry)) = top.entry(number) else {
            return Err(not_there());
        };
        if let (TopEntry::Backup(id), Some(catalog)) = (entry, self.catalog.many()) {
            let backup = catalog.number(id);
            let tree = self.catalog.tree(backup)?;
            let root = tree.entry(EntryPlace::Root)?.ok_or_else(not_there)?;
            return Ok((self.attributes_of(&tree, backup, &root), SHORT));
        }
        let attributes = attributes::of_top(number, entry, &self.owner, self.mounted);
        Ok((attributes, SHORT))
    }

    fn attributes(&self, inode: INodeNo) -> Result<(FileAttr, Duration)> {
        match self.found(inode)? {
            Found::Top(top, number) => self.top_attributes(&top, number),
            Found::Entry(tree, backup, entry) => {
                Ok((self.attributes_of(&tree, backup, &entry), FOR_EVER))
            }
        }
    }

    /// Returns the entry `name` of a directory; `None` if there is no such name.
    fn child(&self, dir: INodeNo, name: &[u8]) -> Result<(Option<FileAttr>, Duration)> {
        match (self.place(dir), self.catalog.many()) {
            (InodePlace::Top(number), Some(catalog)) => {
                let top = self.top(catalog, number)?;
                let path = top.entry(number).map(|(path, _)| path.clone());
                let name = str::from_utf8(name).ok();
                let found = path
                    .zip(name)
                    .and_then(|(dir, name)| top.look_up(&dir, name));
                let attributes = found.map(|number| self.top_attributes(&top, number));
                Ok((
                    attributes.transpose()?.map(|(attributes, _)| attributes),
                    SHORT,
                ))
            }
            (InodePlace::Top(_), None) => Err(not_there()),
            (InodePlace::Entry { backup, place }, _) => {
                let tree = self.catalog.tree(backup)?;
                let found = tree.look_up(place, name)?;
                let attributes = found.map(|entry| self.attributes_of(&tree, backup, &entry));
                Ok((attributes, FOR_EVER))
            }
        }
    }

    /// Lists a directory from `offset` on, until `add` says that the answer is full.
    ///
    /// # Errors
    /// If no name could be listed. After some names, the error comes with the next question.
    fn fill(
        &self,
        dir: INodeNo,
        offset: u64,
        mut add: impl FnMut(&ListedName<'_>) -> bool,
    ) -> std::result::Result<(), Errno> {
        let mut place = offset;
        let listed = self.trouble.attempt(|| {
            self.list(dir, place, |listed| {
                let is_full = add(&listed);
                place = if is_full { place } else { listed.next };
                is_full
            })
        });
        match listed {
            Err(number) if place == offset => Err(number),
            _ => Ok(()),
        }
    }

    fn list(
        &self,
        dir: INodeNo,
        offset: u64,
        mut add: impl FnMut(ListedName<'_>) -> bool,
    ) -> Result<()> {
        let own = attributes::of_top(dir.0, &TopEntry::Directory, &self.owner, self.mounted);
        let dots = [(&b"."[..], 1), (b"..", 2)];
        for (name, next) in dots.into_iter().filter(|(_, next)| *next > offset) {
            let listed = ListedName {
                name,
                next,
                attributes: &own,
                lifetime: SHORT,
            };
            if add(listed) {
                return Ok(());
            }
        }
        match (self.place(dir), self.catalog.many()) {
            (InodePlace::Top(number), Some(catalog)) => {
                let top = self.top(catalog, number)?;
                self.list_top(&top, number, offset, add)
            }
            (InodePlace::Top(_), None) => Err(not_there()),
            (InodePlace::Entry { backup, place }, _) => self.list_entry(backup, place, offset, add),
        }
    }

    fn list_top(
        &self,
        top: &TopTree,
        dir: u64,
        offset: u64,
        mut add: impl FnMut(ListedName<'_>) -> bool,
    ) -> Result<()> {
        let Some((path, _)) = top.entry(dir) else {
            return Err(not_there());
        };
        let mut children = top.children(path);
        // By number, so that a listing goes on at its place although backups came or went.
        children.sort_by_key(|(_, number)| *number);
        for (name, number) in children {
            let next = number + FIRST_CHILD;
            if next <= offset {
                continue;
            }
            // A backup whose root is damaged does not hide the others.
            let found = self.top_attributes(top, number);
            let Ok((attributes, lifetime)) = found.inspect_err(|error| self.tell(error)) else {
                continue;
            };
            let listed = ListedName {
                name: name.as_bytes(),
                next,
                attributes: &attributes,
                lifetime,
            };
            if add(listed) {
                break;
            }
        }
        Ok(())
    }

    fn tell(&self, error: &Error) {
        let told = Error::new(error.kind, error.line());
        self.trouble.tell_once(told);
    }

    fn list_entry(
        &self,
        backup: u64,
        place: EntryPlace,
        offset: u64,
        mut add: impl FnMut(ListedName<'_>) -> bool,
    ) -> Result<()> {
        let tree = self.catalog.tree(backup)?;
        for child in tree.children(place, offset.checked_sub(FIRST_CHILD))? {
            let child = child?;
            let attributes = self.attributes_of(&tree, backup, &child.entry);
            let listed = ListedName {
                name: &child.name,
                next: child.number + FIRST_CHILD,
                attributes: &attributes,
                lifetime: FOR_EVER,
            };
            if add(listed) {
                break;
            }
        }
        Ok(())
    }

    /// Returns the file of an inode, opened, with its tree and its record.
    fn file(&self, inode: INodeNo) -> Result<(Arc<OpenFile>, Arc<BackupTree>, PageItem)> {
        let Found::Entry(tree, _, entry) = self.found(inode)? else {
            return Err(not_there());
        };
        let item = entry.item.ok_or_else(not_there)?;
        let file = self.files.get(&inode.0, || {
            let file = OpenFile::new(tree.open(&item, &self.frames)?);
            let bytes = file.memory_bytes();
            Ok((file, bytes))
        })?;
        Ok((file, tree, item))
    }

    fn read_at(&self, inode: INodeNo, offset: u64, len: u32) -> Result<Vec<u8>> {
        let (file, tree, item) = self.file(inode)?;
        if item.extents.len() > 1 || item.more {
            let range = file.note_read(offset, len.into(), self.most_ahead);
            self.ahead.range(&file, range);
        } else {
            self.note_small(inode.0, &tree, &item);
        }
        let left = file.file.size().saturating_sub(offset);
        let mut buf = vec![0; left.min(len.into()) as usize];
        file.file.read_at(offset, &mut buf)?;
        Ok(buf)
    }

    /// Reads the next files ahead, if the reader reads small files one after the other.
    fn note_small(&self, inode: u64, tree: &Arc<BackupTree>, item: &PageItem) {
        let last = self.last_small.swap(inode, Relaxed);
        if last != inode && inode.wrapping_sub(last) < NEAR_FILES {
            self.ahead.next_files(tree, &self.frames, item);
        }
    }

    fn xattr(&self, inode: INodeNo, name: &[u8]) -> Result<Option<Vec<u8>>> {
        let Found::Entry(_, _, entry) = self.found(inode)? else {
            return Ok(None);
        };
        let Some(entry) = entry.entry() else {
            return Ok(None);
        };
        let mut xattrs = entry.xattrs.iter();
        let found = xattrs.find(|(known, _)| known == name);
        Ok(found.and_then(|xattr| self.owner.xattr(xattr)))
    }

    /// Returns the names of the attributes of an entry, each closed by a NUL.
    fn xattr_names(&self, inode: INodeNo) -> Result<Vec<u8>> {
        let mut names = Vec::new();
        if let Found::Entry(_, _, entry) = self.found(inode)?
            && let Some(entry) = entry.entry()
        {
            let is_name = |name: &[u8]| !name.is_empty() && !name.contains(&0);
            for xattr in entry.xattrs.iter().filter(|(name, _)| is_name(name)) {
                if self.owner.xattr(xattr).is_some() {
                    names.extend(&xattr.0);
                    names.push(0);
                }
            }
        }
        Ok(names)
    }

    fn link_target(&self, inode: INodeNo) -> Result<Vec<u8>> {
        match self.found(inode)? {
            Found::Top(top, number) => match top.entry(number) {
                Some((_, TopEntry::Link(target))) => Ok(target.clone().into_bytes()),
                _ => Err(not_there()),
            },
            Found::Entry(_, _, entry) => match entry.entry().map(|entry| &entry.kind) {
                Some(EntryKind::Symlink(target)) => Ok(target.clone()),
                _ => Err(not_there()),
            },
        }
    }

    /// Returns the next data or hole; `None` if there is no data.
    fn seek(&self, inode: INodeNo, offset: u64, whence: i32) -> Result<Option<u64>> {
        let (file, ..) = self.file(inode)?;
        if offset >= file.file.size() {
            return Ok(None);
        }
        Ok(match whence {
            SEEK_DATA => file.file.next_data(offset),
            _ => Some(file.file.next_hole(offset)),
        })
    }

    /// Returns whether names in a directory can come and go.
    fn is_top(&self, inode: INodeNo) -> bool {
        matches!(self.place(inode), InodePlace::Top(_))
    }
}

fn not_there() -> Error {
    Error::new(ErrorKind::NotFound, "could not find an entry of the mount")
}

/// Answers with the value or its size, as the kernel asks.
fn reply_xattr(value: &[u8], size: u32, reply: ReplyXattr) {
    match (size as usize, u32::try_from(value.len())) {
        (0, Ok(len)) => reply.size(len),
        (size, _) if value.len() <= size => reply.data(value),
        _ => reply.error(Errno::ERANGE),
    }
}

impl Filesystem for MountedBackups {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let mut wanted = InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_NO_OPEN_SUPPORT;
        if matches!(self.owner, ShownOwner::Stored(_)) {
            wanted |= InitFlags::FUSE_POSIX_ACL;
        }
        // Whatever an older kernel lacks is only slower.
        if let Err(missing) = config.add_capabilities(wanted) {
            let _ = config.add_capabilities(wanted & !missing);
        }
        let _ = config.set_max_readahead(1 << 20);
        let _ = config.set_max_write(1 << 20);
        Ok(())
    }

    fn destroy(&mut self) {
        self.trouble.end();
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.kernel_ahead.raise();
        match self.trouble.attempt(|| self.child(parent, name.as_bytes())) {
            Ok((Some(attributes), lifetime)) => {
                reply.entry(&lifetime, &attributes, Generation(0));
            }
            // Number 0: the kernel remembers that there is no such name.
            Ok((None, lifetime)) => {
                let nothing =
                    attributes::of_top(0, &TopEntry::Directory, &self.owner, self.mounted);
                reply.entry(&lifetime, &nothing, Generation(0));
            }
            Err(number) => reply.error(number),
        }
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.kernel_ahead.raise();
        match self.trouble.attempt(|| self.attributes(inode)) {
            Ok((attributes, lifetime)) => {
                let attributes = FileAttr {
                    ino: inode,
                    ..attributes
                };
                reply.attr(&lifetime, &attributes);
            }
            Err(number) => reply.error(number),
        }
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        match self.trouble.attempt(|| self.link_target(inode)) {
            Ok(target) => reply.data(&target),
            Err(number) => reply.error(number),
        }
    }

    /// The kernel then opens files by itself and keeps their content.
    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.trouble.attempt(|| self.read_at(inode, offset, size)) {
            Ok(bytes) => reply.data(&bytes),
            Err(Errno::ENOENT) => reply.error(Errno::EIO),
            Err(number) => reply.error(number),
        }
    }

    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = match self.is_top(inode) {
            true => FopenFlags::empty(),
            false => FopenFlags::FOPEN_CACHE_DIR | FopenFlags::FOPEN_KEEP_CACHE,
        };
        reply.opened(FileHandle(0), flags);
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.fill(inode, offset, |listed| {
            let attributes = listed.attributes;
            let name = OsStr::from_bytes(listed.name);
            reply.add(attributes.ino, listed.next, attributes.kind, name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(number) => reply.error(number),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.fill(inode, offset, |listed| {
            let attributes = listed.attributes;
            let name = OsStr::from_bytes(listed.name);
            let (next, lifetime) = (listed.next, listed.lifetime);
            let inode = attributes.ino;
            reply.add(inode, next, name, &lifetime, attributes, Generation(0))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(number) => reply.error(number),
        }
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        let totals = match &self.catalog {
            Catalog::One(tree) => tree.archive().root.totals.clone(),
            Catalog::Many(_) => Default::default(),
        };
        let blocks = totals.bytes.div_ceil(4096);
        reply.statfs(blocks, 0, 0, totals.entries, 0, 4096, 255, 4096);
    }

    fn getxattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        match self.trouble.attempt(|| self.xattr(inode, name.as_bytes())) {
            Ok(Some(value)) => reply_xattr(&value, size, reply),
            Ok(None) => reply.error(Errno::ENODATA),
            Err(number) => reply.error(number),
        }
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        match self.trouble.attempt(|| self.xattr_names(inode)) {
            Ok(names) => reply_xattr(&names, size, reply),
            Err(number) => reply.error(number),
        }
    }

    fn lseek(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        if !matches!(whence, SEEK_DATA | SEEK_HOLE) || offset < 0 {
            return reply.error(Errno::EINVAL);
        }
        let place = offset.cast_unsigned();
        match self.trouble.attempt(|| self.seek(inode, place, whence)) {
            Ok(Some(found)) => reply.offset(found.cast_signed()),
            Ok(None) => reply.error(Errno::ENXIO),
            Err(number) => reply.error(number),
        }
    }
}
