//! A file tree as a source.
//!
//! Every path is opened beneath its root without following links, so a link that is swapped in
//! during the backup cannot lead outside. The parts of a frame report files that vanished, shrank,
//! grew or cannot be read; the backup goes on.

pub(crate) mod child;
mod exclusions;
pub(crate) mod file_list;
pub(crate) mod hard_links;
pub(crate) mod inner;
pub(crate) mod large_file;
pub(crate) mod limits;
pub(crate) mod listing;
pub(crate) mod open_ahead;
pub(crate) mod parent_dir;
mod parts;
pub(crate) mod refit;
mod rules;
pub(crate) mod small_files;
mod source;
#[cfg(test)]
pub(crate) mod tests;
pub(crate) mod walk;

pub use exclusions::CACHE_TAG_NAME;
pub use parts::{pad, part};
pub use rules::{Closed, ExclusionListener, LeftOutCaches, Overlay, Own, Top, TopRole, TreeRules};
pub use source::SourceTree;
