//! The level of a backup, as dump has it: a tag.

use fullbore_format::root::Root;

/// The tag that has the level of a backup.
pub const LEVEL_TAG: &str = "level";

/// Returns the level of a backup, if it has one.
pub fn level_of(root: &Root) -> Option<u8> {
    root.tags.get(LEVEL_TAG)?.parse().ok()
}

/// Returns whether a backup has a level below this one, if there is one. A backup without a level is no base of one
/// with a level.
pub(crate) fn is_below(root: &Root, level: Option<u8>) -> bool {
    level.is_none_or(|below| level_of(root).is_some_and(|level| level < below))
}
