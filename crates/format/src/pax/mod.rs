//! Members of a tar archive: writes headers and reads headers.
//!
//! [`write_header`] writes POSIX ustar where ustar suffices, and pax records for just the values
//! that ustar cannot hold, in forms that GNU tar, bsdtar and Python's `tarfile` all restore.
//! [`PaxReader`] reads its output and the archives of those three programs. Neither does I/O beyond
//! the byte source that the reader is given, and neither touches content: the caller appends or
//! consumes the bytes of a file and pads them with [`padding`].
//!
//! Rules from trials with GNU tar 1.34, bsdtar 3.6.2 and Python 3.11:
//!
//! - Numbers too large for octal are written twice, as a pax record and in base 256, so that a tool
//!   without pax reads them too. Device numbers are written only in base 256, because GNU tar warns
//!   about `SCHILY.devmajor`.
//! - Owner names that fit are bytes in the header block, ASCII or not, for the reasons of the next
//!   rule.
//! - A longer member name becomes a pax `path` if it is ASCII, else GNU `L` and `K` members. A pax
//!   value is UTF-8, so bsdtar refuses (exit 1, symbolic links lost) values that are not UTF-8, and
//!   in the C locale all that are not ASCII. `hdrcharset=BINARY` makes GNU tar warn for each
//!   member, and bsdtar turn a symbolic link into an empty file. `L` and `K` are bytes, and all
//!   three programs take them, in any locale.
//! - Times before 1970 with a fraction are written as decimal numbers, which GNU tar and Python
//!   read. bsdtar takes `-1.75` for -1 + 0.75 (and writes it so): it is wrong by up to two seconds
//!   there, and no form suits all.
//! - A sparse map ends with (size, 0), or GNU tar cuts the file at the end of the last run. All
//!   runs but the last are whole blocks, see [`storable_map`], or GNU tar loses data: it pads each
//!   run, the others do not.
//! - `=` cannot be part of the key of a record, so in the name of an attribute it is `%3D`, as GNU
//!   tar and bsdtar write it. GNU tar and this reader decode it; bsdtar 3.6.2 restores such an
//!   attribute under the encoded name.
//! - No `g` header is written (libarchive plans to refuse them), and no keys of fullbore's own (GNU
//!   tar warns for each).

use crate::acl;

mod attributes;
mod field;
mod header;
mod read;
mod sparse;
#[cfg(test)]
mod tests;
mod write;

pub use read::{Member, PaxReader, TarItem, Unknown, begins, skip, skip_padding};
pub use sparse::{MAX_RUNS, storable_map};
pub use write::{is_plain_ustar, write_header};

/// Bytes of a block. A header is one block; content is padded to whole blocks.
pub const BLOCK: usize = 512;

/// The end of an archive: two blocks of zeros.
pub const END: [u8; 2 * BLOCK] = [0; 2 * BLOCK];

/// Maximum bytes of pax records before one member, written or read.
///
/// Linux permits 64 KiB an attribute and 64 KiB of names; 16 MiB is 256 attributes of full size.
pub const MAX_RECORDS: usize = 16 << 20;

/// Maximum bytes of a name in a GNU `L` or `K` member, written or read. Linux takes 4,096 in one
/// call.
pub const MAX_NAME: usize = 1 << 20;

/// Number of zeros that follow `len` bytes of content: 0 to 511.
pub const fn padding(len: u64) -> usize {
    ((BLOCK as u64 - len % BLOCK as u64) % BLOCK as u64) as usize
}

/// The attributes that hold access control lists, and the keys of the records for their text.
const ACLS: [(&[u8], &[u8]); 2] = [
    (acl::ACCESS_LIST, b"SCHILY.acl.access"),
    (acl::DEFAULT_LIST, b"SCHILY.acl.default"),
];
/// Prefix of the records of all other attributes.
const XATTR: &[u8] = b"SCHILY.xattr.";
