//! The side that writes, on another host: questions go over a connection.

use super::call::{
    CopyAnswer, CopyCall, CopyTarget, TargetPage, decode_call, encode_call, member_ranges,
    not_understood,
};
use crate::{
    error::{Error, ErrorKind, Result},
    format::page::ManifestPage,
    frame::Frame,
    queue::Locked,
};
use std::sync::Mutex;

/// Bytes of the answer to a question at most.
pub const MAX_ANSWER: u64 = 64 << 20;

/// Questions at the same time: they fill a line of 1 Gbit/s and 100 ms.
const DEPTH: usize = 16;

/// Sends bytes to the other side, and returns its answer of at most so many bytes.
pub type AskPeer = Box<dyn Fn(&[u8], u64) -> Result<Vec<u8>> + Send + Sync>;

/// A tree on another host.
pub struct FarTarget {
    /// How it is asked.
    ask: AskPeer,
    /// Level of zstd for content, if it is compressed.
    level: Option<i32>,
    /// The first page of the tree.
    first: Mutex<Option<CopyAnswer>>,
}

impl FarTarget {
    /// A tree that is asked like this. Content is compressed by zstd of this level, if it is set.
    pub fn new(ask: AskPeer, level: Option<i32>) -> Self {
        Self {
            ask,
            level,
            first: Mutex::default(),
        }
    }

    fn compressed(&self, level: i32, tar: &[u8]) -> Result<Vec<u8>> {
        let mut out = Vec::with_capacity(zstd_safe::compress_bound(tar.len()));
        let done = zstd_safe::compress(&mut out, tar, level);
        done.map_err(|code| {
            let why = zstd_safe::get_error_name(code);
            Error::new(ErrorKind::Bug, "could not compress content").because(why)
        })?;
        Ok(out)
    }
}

impl CopyTarget for FarTarget {
    fn ask(&self, call: CopyCall, body: &[u8]) -> Result<CopyAnswer> {
        let answer = (self.ask)(&encode_call(&call, body), MAX_ANSWER)?;
        let answer: CopyAnswer =
            minicbor::decode(&answer).map_err(|error| not_understood().because(error))?;
        if matches!(call, CopyCall::Open(_)) && !answer.page.is_empty() {
            // The first page came without a question of its own.
            *self.first.locked() = Some(answer);
            return Ok(CopyAnswer {
                has_content: true,
                ..CopyAnswer::default()
            });
        }
        Ok(answer)
    }

    fn list(&self) -> Result<TargetPage> {
        let first = self.first.locked().take();
        let answer = match first {
            Some(answer) => answer,
            None => self.ask(CopyCall::List, b"")?,
        };
        Ok(TargetPage {
            records: ManifestPage::decode(&answer.page)?.records,
            has_more: answer.has_content,
        })
    }

    fn put(&self, frame: &Frame, parts: &[usize]) -> Result<CopyAnswer> {
        let ranges = member_ranges(frame);
        let mut tar = Vec::new();
        for at in parts {
            let member = frame.data.get(ranges[*at].clone());
            tar.extend_from_slice(member.ok_or_else(not_understood)?);
        }
        let (is_compressed, body) = match self.level {
            Some(level) => (true, self.compressed(level, &tar)?),
            None => (false, tar),
        };
        self.ask(CopyCall::Put { is_compressed }, &body)
    }

    fn depth(&self, cores: usize) -> usize {
        cores.max(DEPTH)
    }
}

/// Answers a question of another host.
///
/// # Errors
/// Those of the question; [`ErrorKind::Corrupt`] for anything else.
pub fn answer(target: &dyn CopyTarget, question: &[u8]) -> Result<Vec<u8>> {
    let (call, body) = decode_call(question)?;
    let is_first = matches!(call, CopyCall::Open(_));
    let mut answer = target.ask(call, body)?;
    if is_first && answer.has_content {
        answer = target.ask(CopyCall::List, b"")?;
    }
    let mut bytes = Vec::new();
    // A `Vec` takes all bytes.
    let _ = minicbor::encode(&answer, &mut bytes);
    Ok(bytes)
}
