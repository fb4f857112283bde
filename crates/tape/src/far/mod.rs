//! A drive of another host.
//!
//! The host of the drive answers questions, one for each call of [`Drive`](crate::Drive), and has the buffer before
//! the drive: records come in batches with numbers, so that several are under way. Records that a tape did
//! not take stay on that host, and are written to the next tape from there. How questions get there is the matter of a
//! [`TapeChannel`].
//!
//! Neither side trusts the other one. All lengths and counts are bounded before memory is taken for them. The side with the drive
//! checks each call against the rights that it gives and those that the caller asked for.

mod call;
mod drive;
mod failure;
mod rights;
mod ring;
mod served;
#[cfg(test)]
mod tests;

pub use call::TapeUse;
pub use drive::{TapeChannel, open_far};
pub use rights::{TapeGrant, TapeRights};
pub use served::{ServedDrive, question_room};
