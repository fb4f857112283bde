//! The side that writes, on another host: questions go over a connection.

use super::call::{
    CopyAnswer, CopyCall, CopyTarget, TargetPage, compressed, decode_answer, decode_call,
    encode_answer, encode_call, encode_packed_call, member_ranges, not_understood,
};
use fullbore_format::{error::Result, page::ManifestPage};
use fullbore_pipeline::frame::Frame;
use fullbore_platform::queue::Locked;
use minicbor::bytes::ByteVec;
use std::{collections::VecDeque, sync::Mutex};

/// Bytes of the answer to a question at most.
pub const MAX_ANSWER: u64 = 16 << 20;

/// Bytes of a page of the tree at most, decompressed. Honest ones have a few MiB.
const MAX_PAGE: usize = 64 << 20;

/// Bytes that a question takes where it is answered: pages and their entries. Its content is counted where it is decompressed.
pub const QUESTION_ROOM: usize = 2 << 20;

/// Pages of an answer at most: the entries of most trees come with the first one.
const ANSWER_PAGES: usize = 4;

/// Bytes of content of a question. Each costs both sides about 40 system calls, most of them to wake
/// threads.
const QUESTION_BYTES: u32 = 4 << 20;

/// The level of zstd for headers and paths.
const HEADER_LEVEL: i32 = 1;

/// Questions at the same time: they fill a line of 1 Gbit/s and 100 ms.
const DEPTH: usize = 6;

/// Sends bytes to the other side, and returns its answer of at most so many bytes.
pub type AskPeer = Box<dyn Fn(&[u8], u64) -> Result<Vec<u8>> + Send + Sync>;

/// A tree on another host.
pub struct FarTarget {
    /// How it is asked.
    ask: AskPeer,
    /// Level of zstd for content, if it is compressed.
    level: Option<i32>,
    /// Pages of the tree that came and were not asked for yet.
    listed: Mutex<ListedTree>,
}

/// The part of a tree that came.
#[derive(Default)]
struct ListedTree {
    pages: VecDeque<ByteVec>,
    has_more: bool,
}

impl FarTarget {
    /// The tree to which `ask` sends questions. Content is compressed by zstd of this level, if it is set.
    pub fn new(ask: AskPeer, level: Option<i32>) -> Self {
        Self {
            ask,
            level,
            listed: Mutex::default(),
        }
    }

    /// Headers and paths are always compressed: a header takes a twentieth then.
    fn encode(&self, call: &CopyCall, body: &[u8]) -> Result<Vec<u8>> {
        let level = match call {
            CopyCall::Put { .. } => None,
            // Digests do not become smaller.
            CopyCall::Compare { .. } => None,
            CopyCall::Write { .. } => self.level,
            _ => Some(HEADER_LEVEL),
        };
        match level {
            Some(level) => encode_packed_call(call, body, level),
            None => Ok(encode_call(call, body)),
        }
    }

    fn answer_to(&self, question: &[u8]) -> Result<CopyAnswer> {
        let answer = (self.ask)(question, MAX_ANSWER)?;
        decode_answer(&answer)
    }
}

impl CopyTarget for FarTarget {
    fn ask(&self, call: CopyCall, body: &[u8]) -> Result<CopyAnswer> {
        let answer = self.answer_to(&self.encode(&call, body)?)?;
        if is_list(&call) && !answer.pages.is_empty() {
            // The first pages come without a question of their own.
            *self.listed.locked() = ListedTree {
                pages: answer.pages.into(),
                has_more: answer.has_content,
            };
            return Ok(CopyAnswer {
                has_content: true,
                opened: answer.opened,
                ..CopyAnswer::default()
            });
        }
        Ok(answer)
    }

    fn list(&self) -> Result<TargetPage> {
        if self.listed.locked().pages.is_empty() {
            self.ask(CopyCall::List, b"")?;
        }
        let mut listed = self.listed.locked();
        let page = listed.pages.pop_front().ok_or_else(not_understood)?;
        Ok(TargetPage {
            records: ManifestPage::decode_within(&page, MAX_PAGE)?.records,
            has_more: listed.has_more || !listed.pages.is_empty(),
        })
    }

    fn put(&self, frame: &Frame, parts: &[usize]) -> Result<CopyAnswer> {
        let ranges = member_ranges(frame);
        let is_compressed = self.level.is_some();
        let mut question = encode_call(&CopyCall::Put { is_compressed }, b"");
        let begin = question.len();
        let bytes: usize = parts.iter().map(|index| ranges[*index].len()).sum();
        question.reserve_exact(bytes);
        for index in parts {
            let member = frame.data.get(ranges[*index].clone());
            question.extend_from_slice(member.ok_or_else(not_understood)?);
        }
        if let Some(level) = self.level {
            let tar = compressed(&question[begin..], level)?;
            question.truncate(begin);
            question.extend_from_slice(&tar);
        }
        self.answer_to(&question)
    }

    fn depth(&self, cores: usize) -> usize {
        cores.max(DEPTH)
    }

    fn frame_bytes(&self) -> u32 {
        QUESTION_BYTES
    }
}

/// Returns whether pages of the tree are the answer.
fn is_list(call: &CopyCall) -> bool {
    matches!(call, CopyCall::Open(_) | CopyCall::List | CopyCall::Rewind)
}

/// Answers a question of another host.
///
/// # Errors
/// Those of the question; [`ErrorKind::Corrupt`](fullbore_format::error::ErrorKind::Corrupt) for anything else.
pub fn answer(target: &dyn CopyTarget, question: &[u8]) -> Result<Vec<u8>> {
    let (call, body) = decode_call(question)?;
    let is_first = matches!(call, CopyCall::Open(_) | CopyCall::Rewind);
    let lists = is_list(&call);
    let mut answer = target.ask(call, &body)?;
    if is_first && answer.has_content {
        let opened = answer.opened;
        answer = target.ask(CopyCall::List, b"")?;
        answer.opened = opened;
    }
    while lists && answer.has_content && answer.pages.len() < ANSWER_PAGES {
        let next = target.ask(CopyCall::List, b"")?;
        answer.pages.extend(next.pages);
        answer.has_content = next.has_content;
    }
    Ok(encode_answer(&answer))
}
