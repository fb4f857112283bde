//! Lists the target of a copy while the source is scanned.

use super::call::CopyTarget;
use fullbore_format::{error::Result, page::Record};
use fullbore_pipeline::source::Stream;
use fullbore_platform::queue::{Queue, start};
use std::sync::Arc;

/// Pages of the target that are asked for ahead.
const PAGES_AHEAD: usize = 2;

/// Lists the target in a thread of its own, some pages ahead.
pub(super) fn listed_ahead(target: &Arc<dyn CopyTarget>) -> Result<Stream<Record>> {
    let pages = Arc::new(Queue::with_room(PAGES_AHEAD));
    let (target, filled) = (target.clone(), pages.clone());
    start(move || {
        loop {
            let page = target.list();
            let has_more = page.as_ref().is_ok_and(|page| page.has_more);
            if !filled.push(page.map(|page| page.records)) || !has_more {
                break;
            }
        }
        filled.close();
    })?;
    let pages = ListedPages(pages);
    let all = std::iter::from_fn(move || pages.0.pop());
    let records = all.flat_map(|page| match page {
        Ok(records) => records.into_iter().map(Ok).collect::<Vec<_>>(),
        Err(error) => vec![Err(error)],
    });
    Ok(Box::new(records))
}

/// Pages that are listed by another thread, which ends with them.
struct ListedPages(Arc<Queue<Result<Vec<Record>>>>);

impl Drop for ListedPages {
    fn drop(&mut self) {
        self.0.close();
    }
}
