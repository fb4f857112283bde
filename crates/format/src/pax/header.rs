//! A header block, combined with the pax records before it.

use super::{
    attributes::Attributes,
    field::{self, Block, number, text},
};
use crate::{
    entry::{Device, Entry, EntryKind, EntryPath, Owner, Time, is_safe},
    error::{Error, Result, quoted},
};
use std::sync::Arc;

/// A header block and its position.
pub(super) struct Header {
    pub(super) block: Block,
    /// Bytes of the archive before it.
    pub(super) at: u64,
}

impl Header {
    fn signed(&self, place: std::ops::Range<usize>) -> Result<i64> {
        let field = &self.block[place];
        number(field).ok_or_else(|| damaged(self.at, format!("{} is not a number", quoted(field))))
    }

    pub(super) fn number(&self, place: std::ops::Range<usize>) -> Result<u64> {
        u64::try_from(self.signed(place)?).map_err(|_| damaged(self.at, "a size is negative"))
    }

    pub(super) fn size(&self) -> Result<u64> {
        self.number(field::SIZE)
    }

    /// Returns the name in the fields. Only POSIX has a prefix; GNU's older format uses these bytes
    /// differently.
    fn name(&self) -> Vec<u8> {
        let name = text(&self.block[field::NAME]);
        match text(&self.block[field::PREFIX]) {
            prefix if self.block[field::MAGIC].starts_with(b"ustar\0") && !prefix.is_empty() => {
                [prefix, b"/", name].concat()
            }
            _ => name.to_vec(),
        }
    }

    /// Returns the kind of a member without content: type flags `1` to `6`.
    pub(super) fn special(&self, names: &HeaderNames) -> Result<EntryKind> {
        Ok(match self.block[field::TYPEFLAG] {
            b'1' => EntryKind::HardLink(clean(&names.link)),
            b'2' if names.link.contains(&0) => {
                return Err(damaged(self.at, "the target of a link has a NUL"));
            }
            b'2' => EntryKind::Symlink(names.link.clone()),
            b'3' => EntryKind::CharDevice(self.device()?),
            b'4' => EntryKind::BlockDevice(self.device()?),
            b'5' => EntryKind::Directory,
            _ => EntryKind::Fifo,
        })
    }

    fn device(&self) -> Result<Device> {
        let part = |place| {
            u32::try_from(self.number(place)?)
                .map_err(|_| damaged(self.at, "a device number is too large"))
        };
        Ok(Device {
            major: part(field::MAJOR)?,
            minor: part(field::MINOR)?,
        })
    }

    pub(super) fn entry(
        &self,
        name: &[u8],
        kind: EntryKind,
        mut attributes: Attributes,
    ) -> Result<Entry> {
        let path = clean(name);
        let hollow = matches!(&kind, EntryKind::HardLink(target) if target.is_empty());
        if hollow || (path.is_empty() && kind != EntryKind::Directory) {
            return Err(damaged(self.at, "a member has no name"));
        }
        let mtime = match attributes.mtime {
            Some(mtime) => mtime,
            None => Time {
                seconds: self.signed(field::MTIME)?,
                nanos: 0,
            },
        };
        Ok(Entry {
            path,
            kind,
            mode: (self.number(field::MODE)? & 0o7777) as u32,
            owner: self.owner(&attributes)?,
            mtime,
            ctime: attributes.ctime.unwrap_or_default(),
            // A tar has no inodes: 0 is no inode, so nothing takes two members for names of one
            // file.
            inode: 0,
            xattrs: attributes.take_xattrs(),
        })
    }

    fn owner(&self, attributes: &Attributes) -> Result<Owner> {
        let id = |record: Option<i64>, place| {
            let id = record.map_or_else(|| self.signed(place), Ok)?;
            // Some systems number the user `nobody` -2: take the number modulo 2^32.
            let id = u32::try_from(id).or_else(|_| i32::try_from(id).map(i32::cast_unsigned));
            // Larger numbers modulo 2^32 could become root's.
            Ok(id.unwrap_or(NOBODY))
        };
        let name = |record: &Option<Vec<u8>>, place| match record {
            Some(name) => owner_name(name),
            None if self.block[field::MAGIC].starts_with(b"ustar") => {
                owner_name(complete_owner(&self.block[place]))
            }
            None => Arc::default(),
        };
        Ok(Owner {
            uid: id(attributes.uid, field::UID)?,
            gid: id(attributes.gid, field::GID)?,
            user: name(&attributes.user, field::USER),
            group: name(&attributes.group, field::GROUP),
        })
    }
}

/// Owner for a number that no system here can have.
const NOBODY: u32 = 65534;

/// Returns the user or group name in a field, or an empty name if it may be the start of a longer
/// one.
fn complete_owner(field: &[u8]) -> &[u8] {
    let name = text(field);
    if name.len() > field::MAX_SURE_OWNER {
        b""
    } else {
        name
    }
}

/// Returns the name, or an empty name if it is not UTF-8.
fn owner_name(name: &[u8]) -> Arc<str> {
    std::str::from_utf8(name).map(Arc::from).unwrap_or_default()
}

/// Name and link target of a member. A pax record overrides a GNU member, which overrides the
/// header block.
pub(super) struct HeaderNames {
    pub(super) path: Vec<u8>,
    pub(super) link: Vec<u8>,
}

impl HeaderNames {
    /// Combines the header with the name and the link that GNU members before it have set.
    pub(super) fn of(
        header: &Header,
        gnu: (Option<Vec<u8>>, Option<Vec<u8>>),
        attributes: &mut Attributes,
    ) -> Self {
        let path = attributes
            .sparse
            .name
            .take()
            .or(attributes.path.take())
            .or(gnu.0);
        let link = attributes.link.take().or(gnu.1);
        Self {
            path: path.unwrap_or_else(|| header.name()),
            link: link.unwrap_or_else(|| text(&header.block[field::LINK]).to_vec()),
        }
    }
}

/// Returns the path of a name below the root of the archive: without `.`, doubled slashes, and
/// slashes at either end.
fn clean(name: &[u8]) -> EntryPath {
    let parts = name
        .split(|c| *c == b'/')
        .filter(|part| !part.is_empty() && *part != b".");
    parts.collect::<Vec<_>>().join(&b'/')
}

/// Returns whether a name denotes a path below the root of the archive.
pub(super) fn stays_within(name: &[u8]) -> bool {
    is_safe(&clean(name))
}

/// An error for damage at a byte of the archive.
pub(super) fn damaged(offset: u64, reason: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("cannot read the tar at byte {offset}: {reason}"))
}
