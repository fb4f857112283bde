//! Opens sources of another host.

use super::{
    channel::{FarOrigin, SourceChannel},
    question::{OriginWords, SourceQuestion},
    tree::FarTree,
    words::{decoded, encoded, wrong_words},
};
use fullbore_format::error::{Result, one_line};
use std::sync::Arc;

/// Sources that there may be: one for each device.
const MAX_SOURCES: usize = 256;

/// The name of the host at the other end.
///
/// # Errors
/// Those of the channel.
pub fn far_host_name(channel: &dyn SourceChannel) -> Result<String> {
    decoded(&channel.ask(&encoded(&SourceQuestion::HostName))?)
}

/// Opens a subject on the other host, by words that are its business.
///
/// # Errors
/// Those of the other host and of the channel.
pub fn open_far(
    channel: &Arc<dyn SourceChannel>,
    words: &[u8],
) -> Result<(FarOrigin, Vec<FarTree>)> {
    let question = SourceQuestion::Open(words.to_vec().into());
    let origin: OriginWords = decoded(&channel.ask(&encoded(&question))?)?;
    let sources = origin.sources as usize;
    if sources > MAX_SOURCES {
        return Err(wrong_words("it has too many devices"));
    }
    let trees = (0..origin.sources).map(|number| FarTree::new(channel.clone(), number));
    let origin = FarOrigin {
        host: origin.host,
        paths: origin.paths.into_iter().map(Into::into).collect(),
        contents: origin.contents,
        sources,
    };
    Ok((origin, trees.collect()))
}

/// Warnings of the other host about what it has opened.
///
/// # Errors
/// Those of the channel.
pub fn far_warnings(channel: &dyn SourceChannel) -> Result<Vec<String>> {
    let warnings: Vec<String> = decoded(&channel.ask(&encoded(&SourceQuestion::Warnings))?)?;
    Ok(warnings.iter().map(|line| one_line(line)).collect())
}
