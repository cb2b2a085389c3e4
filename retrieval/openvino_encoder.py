"""The plain BERT encoder compiled by OpenVINO, for embedding many texts on a CPU: the same vectors, in less time.

Optional (`pip install openvino`). Compiling takes seconds, so single queries stay with torch. Where the CPU computes in
bfloat16, OpenVINO does; vectors then agree to a cosine of 0.9999.
"""

from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor

from retrieval.bert_encoder import BertEncoder


class OpenVinoEncoder:
    """A `BertEncoder` whose forward pass runs in OpenVINO. Raises ImportError where that is not installed."""

    def __init__(self, encoder: BertEncoder) -> None:
        import openvino
        from openvino.frontend import FrontEndManager
        from openvino.frontend.pytorch.ts_decoder import TorchScriptPythonDecoder

        example = (torch.ones(2, 8, dtype=torch.long), torch.tensor([8, 5]))
        # Not by `openvino.convert_model`, which does the same and reports its use to its makers over the network.
        frontend = FrontEndManager().load_by_framework("pytorch")
        with torch.no_grad():
            # Has a name because OpenVINO holds no reference to it.
            decoder = TorchScriptPythonDecoder(_Forward(encoder), example_input=example)
            graph = frontend.convert(frontend.load(decoder))
        # A batch on each core, rather than each batch on all of them: none waits for another at every operation.
        self._num_streams = torch.get_num_threads()
        options = {"INFERENCE_NUM_THREADS": self._num_streams, "NUM_STREAMS": self._num_streams}
        compiled: Any = openvino.Core().compile_model(graph, "CPU", options)
        self._idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self._num_streams):
            self._idle.put(compiled.create_infer_request())
        self._encoder = encoder

    @property
    def device(self) -> str:
        return "cpu (OpenVINO)"

    def encode(self, texts: Sequence[str], batch_size: int) -> Any:
        """Pooled vectors [len(texts), hidden], not scaled. Texts beyond the window are cut to it."""
        return self._encoder.encode(texts, batch_size, self._pooled, self._num_streams)

    def _pooled(self, ids: Tensor, lengths: Tensor) -> Tensor:
        request = self._idle.get()
        try:
            return torch.from_numpy(request.infer((ids.numpy(), lengths.numpy()))[0])
        finally:
            self._idle.put(request)


class _Forward(torch.nn.Module):
    """What OpenVINO traces."""

    def __init__(self, encoder: BertEncoder) -> None:
        super().__init__()
        self._encoder = encoder

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        return self._encoder.pooled(ids, lengths, masked=True)
