"""LPOT's names: code written for it runs after changing its import lines.

from octune.compat.lpot import Quantization, write_graph

quantizer = Quantization("./bert.yaml")
dataloader = quantizer.dataloader(dataset, collate_fn=collate_fn)
q_model = quantizer(graph, q_dataloader=dataloader, eval_func=eval_func)
write_graph(q_model.as_graph_def(), "bert-int8.pb")
quantizer.result                                            # everything that was learned: an octune.Result
"""

from __future__ import annotations

from octune.compat.lpot.data import DataLoader
from octune.compat.lpot.graphs import iterator_sess_run, write_graph
from octune.compat.lpot.quantization import Quantization
from octune.compat.lpot.squad import SquadF1, SquadV1PostTransform, parse_label_file

__all__ = [
    "DataLoader",
    "Quantization",
    "SquadF1",
    "SquadV1PostTransform",
    "iterator_sess_run",
    "parse_label_file",
    "write_graph",
]
