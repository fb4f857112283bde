//! Finds the page of a request, and the frame around pages.

use crate::{
    asked::{Asked, Shown},
    http::{
        guard::{Entry, Guard},
        request::{Method, Refused, Request},
        response::Response,
        server::Answers,
    },
    pages::{self, layout},
    place::Place,
    restores::Restores,
};
use fullbore_format::error::{Error, ErrorKind};
use fullbore_repository::archive::{PageCache, frame_cache::FrameCache};
use std::sync::Arc;

pub use crate::place::ShownRepository;

/// What is shown, and what may be done.
pub struct SiteOptions {
    pub repositories: Vec<ShownRepository>,
    /// Bytes of the caches of pages and frames together.
    pub memory: usize,
    /// Whether pages may restore into directories of this host.
    pub may_restore: bool,
    /// Is told the address with the next token, when one was used.
    pub on_entry: Box<dyn Fn(&str) + Send + Sync>,
}

/// All pages.
pub struct Site {
    shown: Shown,
    on_entry: Box<dyn Fn(&str) + Send + Sync>,
}

impl Site {
    /// Makes the pages.
    pub fn new(options: SiteOptions) -> Self {
        let half = options.memory / 2;
        let pages = Arc::new(PageCache::shared(half));
        let frames = Arc::new(FrameCache::new(half));
        let places = options.repositories.into_iter();
        Self {
            shown: Shown {
                places: places
                    .map(|shown| Place::new(shown, pages.clone(), frames.clone()))
                    .collect(),
                restores: Restores::new(options.may_restore),
            },
            on_entry: options.on_entry,
        }
    }
}

impl Answers for Site {
    fn is_question(&self, page: &str) -> bool {
        let name = page.strip_prefix("api/").unwrap_or(page);
        pages::QUESTIONS.contains(&name)
    }

    fn answer(&self, page: &str, request: &Request) -> Response {
        let is_post = request.method == Method::Post;
        let asked = Asked {
            shown: &self.shown,
            fields: if is_post {
                &request.form
            } else {
                &request.query
            },
        };
        let (name, as_json) = match page.strip_prefix("api/") {
            Some(name) => (name, true),
            None => (page, false),
        };
        match pages::answer(&asked, name, as_json, is_post) {
            Ok(response) => response,
            Err(error) => error_answer(&error, as_json),
        }
    }

    fn refusal(&self, refused: Refused) -> Response {
        let response = Response::of("text/plain; charset=utf-8", format!("{}\n", refused.1));
        response.with_status(refused.0)
    }

    fn entry(&self, entry: &Entry, refused: Option<Refused>) -> Response {
        let page = layout::entry_page(entry, refused.map(|refused| refused.1));
        let status = refused.map_or(200, |refused| refused.0);
        Response::html(page.into_string()).with_status(status)
    }

    fn asset(&self, name: &str) -> Option<Response> {
        match name {
            "page.css" => Some(Response::of("text/css", include_str!("../assets/page.css"))),
            "icon.svg" => Some(Response::of(
                "image/svg+xml",
                include_str!("../assets/icon.svg"),
            )),
            "page.js" => Some(Response::of(
                "text/javascript",
                include_str!("../assets/page.js"),
            )),
            _ => None,
        }
    }

    fn entered(&self, guard: &Guard) {
        if matches!(guard.entry(), Entry::Token) {
            (self.on_entry)(&guard.address());
        }
    }
}

fn error_answer(error: &Error, as_json: bool) -> Response {
    let status = match error.kind {
        ErrorKind::NotFound | ErrorKind::Gone => 404,
        ErrorKind::Usage | ErrorKind::Unsupported => 400,
        ErrorKind::Permission => 403,
        ErrorKind::Unreachable => 503,
        _ => 500,
    };
    let response = match as_json {
        true => Response::json(&serde_json::json!({
            "error": error.line(), "hint": error.hint.as_deref(),
        })),
        false => Response::html(layout::error_page(error).into_string()),
    };
    response.with_status(status)
}
