"""Libraries whose models are too slow for a CPU, or which need torchvision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional

from tests.programs.data import fit, images, labels
from tests.programs.program import device, program
from tests.programs.seen import Seen

if TYPE_CHECKING:
    from torch import Tensor


@program(needs=("timm", "torchvision"))
def timm_convnext() -> Seen:
    """A ConvNeXt of timm's with stochastic depth, by timm's own optimizer and loss."""
    import timm
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2

    model = timm.create_model("convnext_atto", num_classes=10, drop_path_rate=0.2).to(device())
    optimizer, loss_of = (
        create_optimizer_v2(model, opt="lamb", lr=1e-3),
        LabelSmoothingCrossEntropy(),
    )
    seen = Seen()
    for step in range(3):
        loss = loss_of(model(images(1, 160, step)), labels(1, step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.step(model, loss)
    return seen


@program(needs=("torchvision",))
def torchvision_densenet() -> Seen:
    """torchvision's DenseNet, which concatenates again and again and rectifies in place."""
    from torchvision.models import densenet121

    return fit(densenet121(num_classes=10), lambda step: (images(1, 128, step), labels(1, step)))


@program(percent=80, needs=("torchvision",))
def torchvision_segmentation() -> Seen:
    """FCN over a ResNet: two heads over features that are held in a dictionary."""
    from torchvision.models.segmentation import fcn_resnet50

    model = fcn_resnet50(weights=None, weights_backbone=None, num_classes=5, aux_loss=True)

    def loss_of(said: dict[str, Tensor], target: Tensor) -> Tensor:
        whole = said["out"].flatten(2).mean(dim=2)
        return functional.cross_entropy(whole + said["aux"].flatten(2).mean(dim=2), target % 5)

    return fit(model, lambda step: (images(1, 96, step), labels(1, step)), loss_of)
