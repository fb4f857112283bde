//! A tree of another host as a source: the listing comes in batches, in archive order, and slices are read there.
//!
//! One side serves the sources that it has opened ([`ServedSources`]); the other one has a [`FarTree`] for each of them, and asks over a
//! [`SourceChannel`]. A slice is one question, however many files it has, and any number of threads may ask at the same time.
//! The frames are those that the other host would have made itself. Entries are sent as pages of the manifest.

mod channel;
mod frame_words;
mod listed;
mod open;
mod question;
mod room;
mod served;
mod tree;
mod words;

pub use channel::{FarOrigin, SourceChannel};
pub use open::{far_host_name, far_warnings, open_far};
pub use question::opened_words;
pub use room::{MAX_FRAME_BYTES, question_room};
pub use served::{OpenSubject, OpenedSources, ServedSources};
pub use tree::FarTree;
