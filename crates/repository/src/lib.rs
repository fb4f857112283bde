//! Repositories: finds backups, makes new backups part of a repository, chooses a base, forgets,
//! prunes.
//!
//! A repository has plain objects only: no database, no reference counts, and no index but lists that may be lost. The first
//! backup, or `fullbore init`, makes the repository. Readers take no locks; a backup locks only its
//! own intent, which shows other processes that it runs. [`fullbore_format::layout`] has the names of
//! the objects.
//!
//! Belongs here: every rule about which objects exist and when they may be deleted. Does not belong
//! here: how objects are stored (`storage`), the bytes in them (`format`), and reading the content
//! of a backup (`archive`).

pub mod annotations;
pub mod archive;
pub mod base;
mod base_files;
mod base_search;
pub mod compare;
pub mod content_lists;
mod content_table;
pub mod counted;
pub mod exact;
pub mod first_look;
mod found_damage;
mod fragmentation;
mod from_word;
pub mod ids;
pub mod import;
pub mod intent;
pub mod inventory;
mod large_listing;
mod leftovers;
pub mod level;
mod listed;
mod local_place;
pub mod open;
pub mod page_spool;
pub mod protocol;
pub mod prune;
mod pruned;
mod renames;
mod repository_file;
pub mod retention;
pub mod root_index;
pub mod root_reader;
pub mod roots;
pub mod scan;
pub mod select;
pub mod selector;
pub mod series_base;
pub mod shard;
pub mod shared_content;
pub mod stored_memory;
pub mod tape_catalog;
pub mod tape_drive;
pub mod verify_memory;
pub mod volume_catalog;
pub mod volume_files;
pub mod volume_series;
pub mod wal;
pub mod writer;
