//! The messages of the guardian to the worker, over a pipe, and the processes at its ends.

use super::event_table::WantedUnits;
use std::{
    fs::File,
    io::{self, Read, Write},
};

/// Bytes of a message. Less than `PIPE_BUF`, so that a message is written whole or not at all.
const MESSAGE_BYTES: usize = 32;

/// A request to the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkerRequest {
    /// Somebody waits for these units.
    Fetch(WantedUnits),
    /// Somebody waits until the whole file is finished.
    Finish(u32),
    /// A file is to be cut to this size.
    Cut { file: u32, size: u64 },
    /// Somebody waits until units that are here are durable.
    Sync,
}

impl WorkerRequest {
    /// Writes the message. Returns false if the pipe is full: it is sent again later.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn send(self, mut pipe: &File) -> io::Result<bool> {
        match pipe.write(&self.encode()) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(false),
            written => written.map(|_| true),
        }
    }

    /// Reads the next message; `None` at the end.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn receive(mut pipe: &File) -> io::Result<Option<Self>> {
        let mut bytes = [0; MESSAGE_BYTES];
        match pipe.read_exact(&mut bytes) {
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err(e),
            Ok(()) => Self::decode(bytes).map(Some),
        }
    }

    fn encode(self) -> [u8; MESSAGE_BYTES] {
        let numbers = match self {
            Self::Fetch(wanted) => [1, wanted.file.into(), wanted.first, wanted.last],
            Self::Finish(file) => [2, file.into(), 0, 0],
            Self::Cut { file, size } => [3, file.into(), size, 0],
            Self::Sync => [4, 0, 0, 0],
        };
        let mut bytes = [0; MESSAGE_BYTES];
        let places = bytes.chunks_exact_mut(8);
        for (place, number) in places.zip(numbers) {
            place.copy_from_slice(&u64::to_ne_bytes(number));
        }
        bytes
    }

    fn decode(bytes: [u8; MESSAGE_BYTES]) -> io::Result<Self> {
        let mut numbers = [0; 4];
        for (number, place) in numbers.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *number = u64::from_ne_bytes(*place);
        }
        let [kind, file, first, last] = numbers;
        let file = file as u32;
        match kind {
            1 => Ok(Self::Fetch(WantedUnits { file, first, last })),
            2 => Ok(Self::Finish(file)),
            3 => Ok(Self::Cut { file, size: first }),
            4 => Ok(Self::Sync),
            _ => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were() {
        let wanted = WantedUnits {
            file: 3,
            first: 1 << 40,
            last: u64::MAX,
        };
        for request in [
            WorkerRequest::Fetch(wanted),
            WorkerRequest::Finish(u32::MAX),
            WorkerRequest::Cut {
                file: 0,
                size: 8192,
            },
            WorkerRequest::Sync,
        ] {
            assert_eq!(WorkerRequest::decode(request.encode()).unwrap(), request);
        }
        assert!(WorkerRequest::decode([9; MESSAGE_BYTES]).is_err());
    }
}
