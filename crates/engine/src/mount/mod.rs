//! Shows backups as directories, by FUSE.
//!
//! All names, attributes and contents come from the stored backup when they are asked for; nothing
//! is written, and memory is bounded by caches that are counted in bytes. The file system is always
//! read-only, without devices and without rights of setuid. Belongs here: what the kernel asks.
//! Does not belong here: how a backup is read ([`fullbore_repository::archive`]).

mod attributes;
mod backup_tree;
mod catalog;
mod filesystem;
mod inode;
mod link_counts;
mod open_file;
mod read_ahead;
mod session;
mod top_tree;
mod trouble;

pub use session::{MountEnd, MountOptions, MountSession, clear_dead_mount};
pub use trouble::OnTrouble;
