// Guides come before the pages about the inside, which have every word. The numbers of `Scorer` are Sphinx's own.
var BEHIND = { api: 100, architecture: 100, evidence: 100, keys: 4 };
var Scorer = {
  score: ([page, , , , score]) => score - (BEHIND[page] || 0),
  objNameMatch: 11, objPartialMatch: 6, objPrio: { 0: 15, 1: 5, 2: -5 }, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
